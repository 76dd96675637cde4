"""The verdict on a run: how available the cluster was, what was lost, what was wrong.

Down is every moment within a call that took over half a second, and within a longer time in which a client got no
answer. A client's own faults (it was killed, stopped or cut off) count for nobody. Lost is an acknowledged object that
nothing accounts for: no removal that a client asked for, no eviction or dead node that the log names. Wrong are bytes
that were put under another key, by several puts, or by none. Impossible is a key whose whole history, as all clients
saw it, fits no order of its calls: the simulator's search decides.
"""

from __future__ import annotations

import itertools
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from chaos.history import Told
from chaos.log_follower import Away
from holdfast.simulation.checks.linearizability import Step, is_linearizable, steps_in_log, where_objects_hide
from holdfast.simulation.checks.restore_checks import Fate
from holdfast.simulation.scripts.history import ClientCall

SLOW_NS = 500_000_000
ASKED_FOR = frozenset({"REMOVE", "REMOVE_BY_REGEX", "REMOVE_ALL", "PUT_REVOKE", "UPSERT"})
"""Ways to leave that a client asked for; all others are the cluster's own doing."""
EXCUSES: dict[str, frozenset[str]] = {
    "UNMOUNTED": frozenset({"node killed"}),
    "UNMOUNT_SEGMENT": frozenset({"node killed"}),
    "FILE_LOST": frozenset({"node's files spoiled"}),
}
"""Ways to leave that only these faults explain. A node that is stopped or cut off keeps its memory."""
PUTS = ("put", "upsert", "put_many")
MOST_TOLD = 20

Span = tuple[int, int]
Places = set[tuple[str, int]]
"""Objects by key and size, as the log knows them."""


@dataclass(slots=True)
class Struck:
    """One fault of the run."""

    name: str
    whom: str
    began_ns: int
    ended_ns: int = 0


@dataclass(slots=True)
class Run:
    """All that is known of a run when it is over."""

    began_ns: int
    ended_ns: int
    faults: list[Struck]
    told: list[Told]
    fates: list[Fate]
    terms_ns: list[int]
    leader_ttl_ms: int
    judged: dict[str, list[int] | None]
    """What was read at the very end, after all was healed: (number of the put, length) by key; None: not there."""
    log_is_whole: bool = True
    """Without it nothing can be said of what was lost, and the run has failed by that."""
    away: list[Away] = field(default_factory=list)
    """What was on disks of dead nodes and nowhere else, and when."""
    unreadable: dict[str, str] = field(default_factory=dict)
    """Keys whose reading failed at the very end, and how."""
    defects: list[str] = field(default_factory=list)


@dataclass(slots=True)
class Verdict:
    seconds: float
    calls: int
    availability: float
    longest_gap_s: float
    by_fault: dict[str, dict[str, float]]
    lost: list[str]
    wrong: list[str]
    impossible: list[str]
    undecided: int
    defects: list[str]
    left_by: dict[str, int]
    errors: dict[str, int]

    @property
    def is_good(self) -> bool:
        return not (self.lost or self.wrong or self.impossible or self.defects)


def judge(run: Run) -> Verdict:
    calls = [call for told in run.told for call in told.calls]
    downs = {told.client: down_spans(run, told) for told in run.told}
    spans = [span for one in downs.values() for span in one]
    clients = {client.partition(".")[0] for client in downs}
    period = max(1, run.ended_ns - run.began_ns)
    down = sum(end - start for start, end in spans) / max(1, len(clients))
    return Verdict(
        seconds=period / 1e9,
        calls=len(calls),
        availability=1 - down / period,
        longest_gap_s=max((end - start for start, end in spans), default=0) / 1e9,
        by_fault=_by_fault(run, spans, max(1, len(clients))),
        lost=_lost(run, calls),
        wrong=_wrong(run, calls),
        impossible=(orders := _impossible(run, calls))[0],
        undecided=orders[1],
        defects=[*run.defects, *(defect for told in run.told for defect in told.defects)],
        left_by=dict(Counter(fate.left for fate in run.fates if fate.left)),
        errors=dict(Counter(call.error.partition(":")[0] for call in calls if call.error)),
    )


# Availability.


def down_spans(run: Run, told: Told) -> list[Span]:
    """When this client was not served, each moment once, outside of the faults that struck itself."""
    if not told.calls:
        return []
    good = sorted(call.answered_ns for call in told.calls if is_answer(call))
    first = told.calls[0].called_ns
    # A process that was killed waits for nothing after its last call.
    last = told.calls[-1].called_ns if any(call.outcome == "pending" for call in told.calls) else run.ended_ns
    marks = [first, *good, max(last, good[-1] if good else first)]
    found = [span for span in itertools.pairwise(marks) if span[1] - span[0] > SLOW_NS]
    found += [(call.called_ns, call.answered_ns) for call in told.calls if call.answered_ns - call.called_ns > SLOW_NS]
    own = [
        (fault.began_ns - SLOW_NS, fault.ended_ns + 2 * SLOW_NS)
        for fault in run.faults
        if told.client.partition(".")[0] in fault.whom.split()
    ]
    clipped = united((max(start, run.began_ns), min(end, run.ended_ns)) for start, end in found)
    return [span for span in clipped if span[1] > span[0] and not any(touch(span, one) for one in own)]


def is_answer(call: ClientCall) -> bool:
    """It told the caller something about the object; being asked to come again later does not."""
    return call.outcome == "done" or (call.outcome == "refused" and call.error.startswith("object_leased"))


def touch(one: Span, other: Span) -> bool:
    return one[0] < other[1] and other[0] < one[1]


def united(spans: Iterable[Span]) -> list[Span]:
    found: list[Span] = []
    for start, end in sorted(spans):
        if found and start <= found[-1][1]:
            found[-1] = (found[-1][0], max(end, found[-1][1]))
        else:
            found.append((start, end))
    return found


def _by_fault(run: Run, spans: list[Span], clients: int) -> dict[str, dict[str, float]]:
    """A span is of the last fault that began before half a second of it had passed."""
    table: dict[str, dict[str, float]] = {}
    for fault in run.faults:
        row = table.setdefault(fault.name, {"times": 0, "longest_gap_s": 0.0, "down_s": 0.0})
        row["times"] += 1
    for start, end in spans:
        before = [fault for fault in run.faults if fault.began_ns <= start + SLOW_NS]
        name = before[-1].name if before else "none"
        row = table.setdefault(name, {"times": 0, "longest_gap_s": 0.0, "down_s": 0.0})
        row["longest_gap_s"] = max(row["longest_gap_s"], (end - start) / 1e9)
        row["down_s"] += (end - start) / 1e9 / clients
    return table


# What was acknowledged.


def _acknowledged(calls: Iterable[ClientCall]) -> Iterator[tuple[ClientCall, str]]:
    for call in calls:
        operation = call.operation
        whole = len(operation.keys) if operation.verb == "put_many" else True
        if operation.verb in PUTS and call.outcome == "done" and call.result == whole:
            yield from ((call, key) for key in operation.keys)


def _lost(run: Run, calls: list[ClientCall]) -> list[str]:
    if not run.log_is_whole:
        return []
    in_log = {(fate.key, fate.size_bytes): fate for fate in run.fates}
    found: list[str] = []
    for call, key in _acknowledged(calls):
        fate = in_log.get((key, call.operation.size_bytes))
        if fate is None:
            found.append(f"{key}: put {call.operation.number:x} was acknowledged and is not in the log (I1)")
        elif fate.left in ASKED_FOR or not fate.left:
            continue
        elif fate.left == "EVICTED" and call.operation.pin == "hard":
            found.append(f"{key}: evicted though it was pinned (I8)")
        elif fate.left in EXCUSES and not EXCUSES[fate.left] & {fault.name for fault in run.faults}:
            found.append(f"{key}: {fate.left}, and no fault of the run explains it")
    found += [
        f"{fate.key}: the log holds it, and it cannot be read after all was healed"
        for fate in run.fates
        if not fate.left and fate.key in run.judged and run.judged[fate.key] is None
    ]
    found += [f"{key}: {why}" for key, why in run.unreadable.items()]
    return found


def _wrong(run: Run, calls: list[ClientCall]) -> list[str]:
    puts = {
        (key, call.operation.number): call.operation.size_bytes
        for call in calls
        if call.operation.verb in PUTS
        for key in call.operation.keys
    }
    reads = [(key, value[0], value[1], "the end") for key, value in run.judged.items() if value is not None]
    reads += [
        (key, number, length, f"{told.client}, call {call.operation.number:x}")
        for told in run.told
        for call, key, number, length in told.reads
    ]
    return [
        f"{who} read {length} bytes of put {number:x} under {key}"
        for key, number, length, who in reads
        if puts.get((key, number)) != length
    ]


# Orders.


def _impossible(run: Run, calls: list[ClientCall]) -> tuple[list[str], int]:
    if not run.log_is_whole:
        return [], 0
    left = {(fate.key, fate.size_bytes) for fate in run.fates if fate.left and fate.left not in ASKED_FOR}
    in_log = {(fate.key, fate.size_bytes) for fate in run.fates}
    by_key: dict[str, list[ClientCall]] = defaultdict(list)
    for call in calls:
        for key in call.operation.keys:
            by_key[key].append(call)
    away: dict[str, list[Away]] = defaultdict(list)
    for one in run.away:
        away[one.key].append(one)
    found: list[str] = []
    undecided = 0
    for key, of_key in sorted(by_key.items()):
        steps = [step for call in of_key for step in steps_in_log(call, key, in_log, left)]
        steps = [seen for step in steps for seen in _unless_away(step, away[key])]
        possible = is_linearizable(step for step in steps if not _is_a_miss_after_a_guess(run, step))
        if possible is None:
            undecided += 1
        elif not possible:
            found.append(f"{key}: {len(of_key)} calls fit no order (I1, I2, I7)")
    return found, undecided


def _is_a_miss_after_a_guess(run: Run, step: Step) -> bool:
    """Until its deadline an earlier primary may answer beside a new one, and not know what was put since."""
    if step.effect != "sees" or step.number != 0:
        return False
    both_ns = int(run.leader_ttl_ms * 1.05) * 1_000_000 + SLOW_NS
    return any(step.from_ns <= began + both_ns and began - 2 * SLOW_NS <= step.until_ns for began in run.terms_ns)


def _unless_away(step: Step, away: list[Away]) -> Iterable[Step]:
    """What is on a disk that is away is not seen until that is back, as the simulator has it, too. The log is read here
    a moment after it was written."""
    hidden = any(step.from_ns <= one.until_ns + SLOW_NS and one.from_ns - 2 * SLOW_NS <= step.until_ns for one in away)
    return where_objects_hide(step) if hidden else (step,)
