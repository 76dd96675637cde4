"""Could all calls that clients made on one key have happened one after another?

Each call takes effect at one moment between its call and its reply; a read under a lease may take effect as early as
the lease began; a call whose outcome is unknown may take effect at any later moment, or never. An object that was
evicted or lost with its node, according to the log, may leave at any moment. A search tries the orders that these
bounds allow, and remembers each (set of calls done, object there) that it has seen. Past a limit it gives up undecided.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Literal, TypeAlias

from holdfast.simulation.scripts.history import ClientCall, number_of, tenant_in

Effect: TypeAlias = Literal[
    "store", "replace", "sees", "takes", "may_store", "may_take", "leaves", "may_replace", "clears", "becomes"
]
NEVER_NS = 1 << 62
MOST_STATES = 50_000


@dataclass(frozen=True, slots=True)
class Step:
    """One call's effect on the key. `number` is the put whose object it stores, sees or removes; 0: none."""

    effect: Effect
    number: int
    from_ns: int
    until_ns: int
    optional: bool = False
    removes: bool = False
    """A removal that found nothing."""


def after(step: Step, present: int) -> list[int]:
    """The objects that may be there after the step, with `present` there before; empty if it cannot happen now."""
    match step.effect:
        case "store":
            return [step.number] if present == 0 else []
        case "replace" | "becomes":
            return [step.number]
        case "sees":
            matches = present == step.number if step.number >= 0 else present != 0
            return [present] if matches else []
        case "takes":
            return [0] if present != 0 else []
        case "may_store":
            return [step.number] if present == 0 else [present]
        case "may_take":
            return [0, present] if present != 0 else [0]
        case "leaves":
            return [0] if present == step.number else []
        case "may_replace":
            return [step.number, present] if present != 0 else [step.number]
        case "clears":
            return [0]


ANY = -1


def steps_of(call: ClientCall, key: str) -> Iterator[Step]:
    """The steps by which this call changed or saw the key."""
    operation = call.operation
    start, end = call.called_ns, call.answered_ns
    unknown = call.outcome in ("unknown", "pending")
    number = operation.number
    match operation.verb:
        case "put" | "upsert" | "reserve":
            effect: Effect = "replace" if operation.verb == "upsert" else "store"
            if unknown:
                yield Step(effect, number, start, NEVER_NS, optional=True)
            elif call.outcome == "done":
                yield Step(effect, number, start, end) if call.result else Step("sees", ANY, start, end)
        case "put_many":
            if unknown:
                yield Step("store", number, start, NEVER_NS, optional=True)
            elif call.outcome == "done":
                yield _stored_some(call, start, end)
        case "get" | "view" | "get_many" | "hold":
            if call.outcome == "done" and key not in call.left_out:
                value = call.result.get(key) if isinstance(call.result, dict) else call.result
                since = min(start, call.leased_since_ns.get(key, start))
                yield Step("sees", seen_number(value), since, end)
        case "exists" | "touch" | "pin" | "unpin":
            if call.outcome == "done" and (call.result or not call.asked_without):
                yield Step("sees", ANY if call.result else 0, start, end)
        case "list":
            if call.outcome == "done" and isinstance(call.result, list) and key.startswith(operation.keys[0]):
                yield Step("sees", ANY if key in call.result else 0, start, end)
        case "remove" | "force_remove":
            if unknown:
                yield Step("takes", 0, start, NEVER_NS, optional=True)
            elif call.outcome == "done":
                yield Step("takes", 0, start, end) if call.result else Step("sees", 0, start, end, removes=True)
        case "remove_matching" | "remove_all":
            if unknown or call.outcome == "done":
                yield Step("may_take", 0, start, NEVER_NS if unknown else end, optional=True)


def steps_in_log(
    call: ClientCall, key: str, in_log: set[tuple[str, int]], left: set[tuple[str, int]]
) -> Iterator[Step]:
    """The same, using the log's knowledge of its object, identified by key and size: whether the log holds it, and
    whether it was evicted or lost with its node."""
    operation = call.operation
    known = (key, operation.size_bytes)
    puts = key in operation.keys and operation.verb in ("put", "upsert", "put_many", "reserve")
    in_memory = puts and operation.durability in ("memory", "standby") and call.outcome == "done"
    if in_memory and (known not in in_log or not call.result):
        # A put with durability in memory may be lost, with everything before it that was not durable. So only calls of
        # the same durability saw it: an object that such a put found in its way may be lost as well. One with
        # durability standby that is not in the log has been judged before: two masters were lost at once.
        return
    if key in operation.keys or (operation.verb in ("remove_all", "list") and call.tenant == tenant_in(key)):
        yield from steps_of(call, key)
    if puts and known in left:
        yield Step("leaves", operation.number, call.called_ns, NEVER_NS, optional=True)


def where_objects_hide(step: Step) -> Iterator[Step]:
    """The same step with unlogged evictions: an object may be hidden for a while, and be back after a failover. So
    nothing follows from not seeing it, and a put may replace one that it did not see. An object that was removed, or
    that a removal found absent, must still stay away."""
    if step.effect == "store":
        yield replace(step, effect="replace")
    elif step.effect == "may_store":
        yield replace(step, effect="may_replace")
    elif step.effect != "sees" or step.number != 0:
        yield step
    elif step.removes:
        yield replace(step, effect="clears")


def _stored_some(call: ClientCall, start: int, end: int) -> Step:
    """A step for a reply that only counts how many of the keys were free."""
    if call.result == len(call.operation.keys):
        return Step("store", call.operation.number, start, end)
    if call.result == 0:
        return Step("sees", ANY, start, end)
    return Step("may_store", call.operation.number, start, end)


def seen_number(value: object) -> int:
    """The number of the put whose bytes these are; 0 for none. Another checker looks for bytes of no put."""
    if value is None:
        return 0
    assert isinstance(value, bytes)
    number = number_of(value)
    return number if number is not None else ANY


def is_linearizable(steps: Iterable[Step]) -> bool | None:
    """None: too many orders to try."""
    ordered = sorted(steps, key=lambda step: (step.from_ns, step.until_ns))
    by_end = sorted((step.until_ns, 1 << i) for i, step in enumerate(ordered) if not step.optional)
    everything = sum(bit for _, bit in by_end)
    seen: set[tuple[int, int]] = set()
    stack = [(0, 0)]
    while stack:
        done, present = stack.pop()
        if done & everything == everything:
            return True
        if (done, present) in seen:
            continue
        seen.add((done, present))
        if len(seen) > MOST_STATES:
            return None
        stack += _next(ordered, by_end, done, present)
    return False


def _next(ordered: list[Step], by_end: list[tuple[int, int]], done: int, present: int) -> list[tuple[int, int]]:
    # A step that must still happen and has been answered comes before every call that was made later.
    limit = next((until_ns for until_ns, bit in by_end if not done & bit), NEVER_NS)
    found: list[tuple[int, int]] = []
    for i in range(_lowest_zero(done), len(ordered)):
        step = ordered[i]
        if step.from_ns > limit:
            break
        bit = 1 << i
        if not done & bit:
            for object_there in after(step, present):
                if step.effect == "sees":
                    # A step that changes nothing and fits now is taken now: in any order in which it comes later, it
                    # can come here as well.
                    return [(done | bit, present)]
                found.append((done | bit, object_there))
    return found


def _lowest_zero(bits: int) -> int:
    return (~bits & (bits + 1)).bit_length() - 1
