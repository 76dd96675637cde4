"""Bugs planted on purpose: what the simulator must find if it is worth anything.

Each is a small change of production code, made for as long as a `with` block lasts. It says within how many seeds it
must be found, and as which broken promises it may show. Where one is not found, faults, operations or checkers have
a hole.
"""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest

from holdfast.client import background
from holdfast.client.operations import places
from holdfast.coordination import watches
from holdfast.coordination.memory import MemoryCoordination, MemoryTerm
from holdfast.coordination.terms import out_of_order
from holdfast.core import decide, promotion, upkeep
from holdfast.core.nodes import membership
from holdfast.core.objects import eviction, puts, removals, room, standby_eviction
from holdfast.core.primary.primary import Absorbed, Primary
from holdfast.errors import HoldfastError
from holdfast.instant import relied_on
from holdfast.master import tasks
from holdfast.master.engine.durability import BY_KEYS, Durability
from holdfast.master.engine.engine import Engine
from holdfast.master.engine.shell import FOR_EVER, EngineShell
from holdfast.messages.records import GrantEnded, ObjectsRemoved
from holdfast.messages.requests import CommitPuts, GrantRanges
from holdfast.node.memory import proofs
from holdfast.node.memory.lent_memory import LentMemory
from holdfast.replication import batches, snapshots, standby
from holdfast.simulation.runs.run import Run, run
from holdfast.simulation.scripts.draw import draw

Patch = contextlib.AbstractContextManager[Any]
QUICK = 60
"""A bug that is found within this many seeds is hunted by `make check`."""
SEEDS_FILE = Path(__file__).with_name("found_seeds.json")
FOUND_SEEDS: dict[str, int] = json.loads(SEEDS_FILE.read_text())
"""By the bug's name, the seed that last found it, which is played first. tests/simulation/found_seeds.py writes it."""


@dataclass(frozen=True, slots=True)
class Planted:
    name: str
    plant: Callable[[], Patch]
    promises: tuple[str, ...]
    seeds: int
    """Within so many, counted from 0, it must be found."""
    scene: str = ""
    """The one that these seeds play, each of them; empty: what each draws. For bugs that need one scene and nothing
    else, so that no seed is wasted."""


def hunt(bug: Planted, seeds: int | None = None) -> Run | None:
    """The first run in which the bug breaks one of its promises."""
    with bug.plant():
        first = [FOUND_SEEDS[bug.name]] if bug.name in FOUND_SEEDS else []
        for seed in [*first, *range(bug.seeds if seeds is None else seeds)]:
            found = run(draw(seed, scene=bug.scene))
            if found.violation is None:
                continue
            if found.violation.promise in bug.promises:
                return found
            # The code that it is planted in has changed: it breaks everything, which proves nothing.
            assert not re.search("TypeError|AttributeError|NameError", found.violation.what), found.violation.what
    return None


def assert_found(bug: Planted) -> None:
    assert hunt(bug) is not None, f"{bug.name} was not found in {bug.seeds} seeds: a hole in faults or checkers"


def as_parameters(bugs: Sequence[Planted]) -> list[object]:
    """For a test that hunts one of them. Those that may take long are left to `make sim`."""
    quick = [bug.seeds <= QUICK or bug.name in FOUND_SEEDS for bug in bugs]
    marks = [[] if each else [pytest.mark.thorough] for each in quick]
    return [pytest.param(bug, id=bug.name, marks=mark) for bug, mark in zip(bugs, marks, strict=True)]


def rests_on_nothing(kind: type[object] | tuple[type[object], ...]) -> Patch:
    """Answers to such requests leave at once, durable or not."""

    real = Durability.required_index

    def required_index(self: Durability, request: Any, reply: Any, before: int) -> int:
        return 0 if isinstance(request, kind) else real(self, request, reply, before)

    return patch.object(Durability, "required_index", required_index)


def acknowledge_before_durable() -> Patch:
    return rests_on_nothing(CommitPuts)


def answer_from_an_undurable_record() -> Patch:
    return rests_on_nothing(BY_KEYS)


def hand_out_a_grant_before_durable() -> Patch:
    return rests_on_nothing(GrantRanges)


def reuse_before_durable() -> Patch:
    """The grant leaves at once as well: otherwise its own record, later in the log, would vouch for the earlier."""
    real = Primary.absorb

    def absorb(self: Primary, record: Any, now: int) -> Any:
        absorbed = real(self, record, now)
        self.reclaim(absorbed.freed)
        return Absorbed(absorbed.applied, (), absorbed.commands)

    return both(patch.object(Primary, "absorb", absorb), rests_on_nothing(GrantRanges))


def skip_the_fence() -> Patch:
    """What is written goes behind what there is, whoever leads."""

    def write(self: MemoryTerm, index: int, batch: bytes) -> None:
        cluster = self._cluster
        if (self.epoch, batch) not in cluster.batches.values():
            cluster.last += 1
            cluster.batches[cluster.last] = (self.epoch, batch)
            cluster.changed()

    return patch.object(MemoryTerm, "_write", write)


def fence_by_the_tail_alone() -> Patch:
    """A deposed master may still write, as long as its successor has not."""

    def write(self: MemoryTerm, index: int, batch: bytes) -> None:
        cluster = self._cluster
        if cluster.batches.get(index) == (self.epoch, batch):
            return
        if index != cluster.last + 1:
            raise out_of_order(index, cluster.last)
        cluster.batches[index] = (self.epoch, batch)
        cluster.last = index
        cluster.changed()

    return patch.object(MemoryTerm, "_write", write)


def wait_for_the_watch_alone() -> Patch:
    """A watch event that never came is never noticed."""
    real = watches.Changes.beyond

    async def beyond(self: watches.Changes, seen: int, wait_s: float) -> None:
        await real(self, seen, 3600.0)

    return patch.object(watches.Changes, "beyond", beyond)


@contextlib.contextmanager
def take_what_the_watch_says_as_next() -> Iterator[None]:
    """A follower that takes the newest batch only, as if the watch had told of every one."""

    def decode(position: batches.Position, number: int, batch: bytes) -> Any:
        before = batches._HEAD.unpack_from(batch)[4]
        return batches.decode_batch(batches.Position(number - 1, position.index, before), number, _at(batch, position))

    real = MemoryCoordination._read_after

    async def read_after(self: MemoryCoordination, after: int) -> Any:
        found = await real(self, after)
        return [(after + 1, found[-1][1])] if found else found

    with patch.object(standby, "decode_batch", decode), patch.object(MemoryCoordination, "_read_after", read_after):
        yield


def _at(batch: bytes, position: batches.Position) -> bytes:
    """The batch, as if it began right behind the position."""
    magic, version, count, _, before = batches._HEAD.unpack_from(batch)
    return batches._HEAD.pack(magic, version, count, position.index, before) + batch[batches._HEAD.size :]


def short_lease_at_promotion() -> Patch:
    return patch.object(promotion, "guard_ms", lambda state, leader_ttl_ms, proven: state.lease_ttl_ms // 4)


def keep_leases_as_they_are_at_promotion() -> Patch:
    return patch.object(promotion, "guard_ms", lambda state, leader_ttl_ms, proven: 0)


def forget_the_leader_ttl_in_the_guard() -> Patch:
    return patch.object(promotion, "guard_ms", lambda state, leader_ttl_ms, proven: state.lease_ttl_ms)


def free_a_grant_by_its_timeout() -> Patch:
    return patch.object(upkeep, "GrantEnded", lambda grant, settled: GrantEnded(grant, list(range(100))))


def free_a_removed_object_under_its_lease() -> Patch:
    real = removals._remove

    def remove(*given: Any) -> Any:
        answer, records = real(*given)
        return answer, [ObjectsRemoved(one.ids + one.leased, b"", one.cause) for one in records]

    return patch.object(removals, "_remove", remove)


def free_a_replaced_object_under_its_lease() -> Patch:
    real = puts._giving_way

    def giving_way(*given: Any) -> tuple[bytes, bytes]:
        free, held = real(*given)
        return free + held, b""

    return patch.object(puts, "_giving_way", giving_way)


def take_away_right_after_a_guess() -> Patch:
    return patch.object(Engine, "_takes_away", lambda self, request, client: False)


def follow_on_after_promotion() -> Patch:
    real = tasks.until_ended

    async def ended(*ending: Any) -> None:
        await real(*(task for task in ending if task.get_coro().__qualname__ != "StandbyRole._follow"))

    return patch.object(tasks, "until_ended", ended)


def lead_past_the_deadline() -> Patch:
    real = EngineShell.__init__

    def leads_for_ever(self: EngineShell, **given: Any) -> None:
        real(self, **{**given, "leads_until": lambda: FOR_EVER})

    return both(patch.object(EngineShell, "__init__", leads_for_ever), patch.object(Engine, "stop_deciding"))


def forget_the_boot_id() -> Patch:
    """A node that comes back says that it is the one that it was."""
    real = LentMemory.create.__func__  # type: ignore[attr-defined]

    def create(cls: type[LentMemory], node: str, *given: Any, **named: Any) -> LentMemory:
        memory: LentMemory = real(cls, node, *given, **named)
        memory.boot = 77
        for segment in memory.segments:
            segment.name = segment.name._replace(boot=77)
        return memory

    return patch.object(LentMemory, "create", classmethod(create))


@contextlib.contextmanager
def evict_the_leased() -> Iterator[None]:
    """To whoever chooses what is evicted, every lease has long ended."""
    real = eviction.victims

    def victims(state: Any, need_bytes: int, now: int, *more: Any, **named: Any) -> Any:
        return real(state, need_bytes, now + (1 << 50), *more, **named)

    layout_of = room.layout_of

    def layout(primary: Any, segment: Any, now: int, *more: Any) -> Any:
        return layout_of(primary, segment, now + (1 << 50), *more)

    with contextlib.ExitStack() as stack:
        for module in (eviction, standby_eviction):
            stack.enter_context(patch.object(module, "victims", victims))
        stack.enter_context(patch.object(room, "layout_of", layout))
        stack.enter_context(patch.object(room, "_still_good", lambda *given: True))
        yield


def forget_answers_of_removals() -> Patch:
    """Asked again, it removes again."""
    return patch.object(removals, "_remembered", lambda answer, records, client, serial: records)


def a_commit_asked_again_is_a_new_one() -> Patch:
    real = puts._sort_out

    def sort_out(primary: Any, grant: Any, request: Any) -> Any:
        kept = dict(grant.commits)
        grant.commits.clear()
        try:
            return real(primary, grant, request)
        except HoldfastError:
            return [], bytearray(len(request.keys))
        finally:
            grant.commits.update(kept)

    return patch.object(puts, "_sort_out", sort_out)


def write_over_tcp_after_clean() -> Patch:
    return patch.object(proofs.RefusedGrants, "check", lambda self, grant: None)


def take_every_writer_for_gone() -> Patch:
    """A node that registers again is taken to have lost all its writers."""
    real = membership.register_node

    def register(primary: Any, request: Any, connection: int, now: int) -> Any:
        request.live_writers.clear()
        return real(primary, request, connection, now)

    return patch.dict(decide._DECIDE, {key: register for key, f in decide._DECIDE.items() if f is real})


def count_a_lease_from_its_answer() -> Patch:
    """Instead of from before the request was sent."""
    return lease_until_by(lambda sent_at, ttl_ms, now: now + relied_on(ttl_ms / 1000))


def lease_until_by(until: Callable[[float, int, float], float]) -> Patch:
    from holdfast.instant import now_seconds

    def lease_until(sent_at: float, ttl_ms: int) -> float:
        return until(sent_at, ttl_ms, now_seconds())

    return both(patch.object(places, "lease_until", lease_until), patch.object(background, "lease_until", lease_until))


def believe_a_spoiled_snapshot() -> Patch:
    real = snapshots._sections

    def sections(data: memoryview) -> Any:
        with patch.object(snapshots, "xxhash", _NoChecksums):
            return real(data)

    return patch.object(snapshots, "_sections", sections)


class _Any(int):
    __hash__ = int.__hash__

    def __eq__(self, other: object) -> bool:
        return True

    def __ne__(self, other: object) -> bool:
        return False


class _NoChecksums:
    @staticmethod
    def xxh3_64_intdigest(content: bytes) -> int:
        return _Any()


@contextlib.contextmanager
def both(one: Any, other: Any) -> Iterator[None]:
    with one, other:
        yield


PLANTED = {
    bug.name: bug
    for bug in (
        Planted("acknowledge before durable", acknowledge_before_durable, ("I1", "I7"), 60),
        Planted("answer from an undurable record", answer_from_an_undurable_record, ("I2", "I7"), 200),
        Planted(
            "hand out a grant before it is durable", hand_out_a_grant_before_durable, ("I2", "I9", "I11", "I19"), 60
        ),
        Planted(
            "reuse a freed range before that is durable", reuse_before_durable, ("I2", "I8", "I9", "I11", "I19"), 60
        ),
        Planted("skip the fence", skip_the_fence, ("I3", "I5", "I13"), 300),
        Planted("fence by the tail alone", fence_by_the_tail_alone, ("I3", "I5", "I13"), 300),
        Planted("wait for the watch alone", wait_for_the_watch_alone, ("liveness", "I10"), 60),
        Planted(
            "take what the watch says as next", take_what_the_watch_says_as_next, ("I5", "I13", "I10", "liveness"), 60
        ),
        Planted("short lease at promotion", short_lease_at_promotion, ("I2", "I8"), 300),
        Planted("keep leases as they are at promotion", keep_leases_as_they_are_at_promotion, ("I2", "I8"), 60),
        Planted("forget the leader's ttl in the guard", forget_the_leader_ttl_in_the_guard, ("I2", "I8"), 1000),
        Planted("free a grant's range by its timeout", free_a_grant_by_its_timeout, ("I2", "I9", "I11"), 60),
        Planted("free a removed object under its lease", free_a_removed_object_under_its_lease, ("I2", "I8"), 60),
        Planted("free a replaced object under its lease", free_a_replaced_object_under_its_lease, ("I2", "I8"), 60),
        Planted("follow on after promotion", follow_on_after_promotion, ("I5", "I9", "I10", "liveness"), 60),
        Planted("lead past the deadline", lead_past_the_deadline, ("I12",), 60),
        Planted("forget the boot id", forget_the_boot_id, ("I2", "I14"), 60),
        Planted("evict the leased", evict_the_leased, ("I2", "I8"), 60),
        Planted("forget answers of removals", forget_answers_of_removals, ("I7",), 400),
        Planted("a commit asked again is a new one", a_commit_asked_again_is_a_new_one, ("I7",), 200),
        Planted("take every writer for gone", take_every_writer_for_gone, ("I2", "I9", "I11"), 60),
        Planted("count a lease from its answer", count_a_lease_from_its_answer, ("I2", "I8"), 1000),
        Planted("take away right after a guess", take_away_right_after_a_guess, ("I2", "I7", "I8"), 200),
        Planted("write over TCP after clean", write_over_tcp_after_clean, ("I2",), 1000),
        Planted("believe a spoiled snapshot", believe_a_spoiled_snapshot, ("I5", "I10", "I13", "liveness"), 500),
    )
}
