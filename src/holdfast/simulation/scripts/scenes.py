"""Scenes: a few operations and faults that mean something only together, drawn into a script now and then.

Some bugs need three things within a second: a wrong guess, a removal after it, a client that still asks the old
primary. Drawn one by one they hardly ever meet. A scene draws its parts around one moment, with random times; the rest
of the script goes on beside it. Scenes have random streams of their own: a seed without one plays the script that it
would play if there were no scenes.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Literal, TypeAlias

from holdfast.simulation.scripts.script import BIG, FAULT_MS, PRIMARY, Fault, FaultKind, Operation, ScriptShape, Verb

Scene: TypeAlias = tuple[list[Operation], list[Fault]]
FIRST_NUMBER = 200
"""The first number of a scene's operations: those of the rest of the script have smaller ones."""
SMALL = 1_000
LARGE = 20_000
"""Objects of this size have a grant of their own; several of them are far from filling the memory."""


def draw_scenes(seed: int, shape: ScriptShape, only: str = "") -> Scene:
    """Draw the scenes of a seed. `only`: this one for sure, and no other."""
    operations: list[Operation] = []
    faults: list[Fault] = []
    for name, (share, draw) in SCENES.items():
        chance = random.Random(f"scene {name} {seed}")
        is_drawn = chance.random() < share
        if is_drawn if not only else name == only:
            more, worse = draw(chance, shape, FIRST_NUMBER + len(operations))
            operations += more
            faults += worse
    return operations, faults


def a_wrong_guess(chance: random.Random, shape: ScriptShape, number: int) -> Scene:
    """The primary is cut off from the store and refuses the other masters and a client, which removes an object at the
    new one, while another client still asks the old one."""
    at_ms = chance.randint(3_500, FAULT_MS - 3_000)
    asks, takes = chance.sample(range(shape.clients), 2)
    key = ("scene/guess",)
    operations = [Operation(at_ms - chance.randint(600, 2_500), asks, "put", number, key, number + SMALL)]
    number += 1
    for _ in range(chance.randint(10, 25)):
        verb: Verb = chance.choice(("exists", "exists", "get"))
        operations.append(Operation(at_ms + chance.randint(10, 1_300), asks, verb, number, key))
        number += 1
    verb = chance.choice(("force_remove", "force_remove", "remove", "upsert"))
    operations.append(Operation(at_ms + chance.randint(80, 700), takes, verb, number, key, number + SMALL))
    return operations, [Fault(at_ms, "refuse", chance.randint(1_500, 4_000), PRIMARY, f"client-{takes}")]


def a_late_writer(chance: random.Random, shape: ScriptShape, number: int) -> Scene:
    """A client on another machine is stopped, or its bytes are, between grant and copy, until the range belongs to
    another writer; then the bytes arrive."""
    if shape.clients <= shape.nodes:
        return [], []
    at_ms = chance.randint(1_000, FAULT_MS - 12_000)
    writer = chance.randrange(shape.nodes, shape.clients)
    others = [client for client in range(shape.clients) if client != writer]
    operations = [Operation(at_ms, writer, "put", number, ("scene/late",), number + BIG)]
    number += 1
    for i in range(chance.randint(4, 7)):
        when_ms, key = at_ms + 5_000 + 300 * i + chance.randint(0, 250), (f"scene/{i}",)
        operations.append(Operation(when_ms, chance.choice(others), "put", number, key, number + BIG))
        operations.append(
            Operation(at_ms + chance.randint(10_000, 12_000), chance.choice(others), "get", number + 1, key)
        )
        number += 2
    who = f"client-{writer}"
    faults = [Fault(at_ms - 100, "slow_threads", 1_500, who, share=0.1)]
    if chance.random() < 0.5:
        faults.append(Fault(at_ms + chance.randint(20, 200), "pause_client", 9_000, who))
    else:
        # Cut all ways to the nodes: wherever the grant is, its bytes wait, and leave when the cut ends.
        begins_ms = at_ms + chance.randint(20, 200)
        faults += [Fault(begins_ms, "cut", 9_000, who, f"node-{i}") for i in range(shape.nodes)]
    return operations, faults


def shorter_leases(chance: random.Random, shape: ScriptShape, number: int) -> Scene:
    """A lease is given, then leases are made shorter, and the next primary must still honour the longer one."""
    at_ms = chance.randint(3_000, FAULT_MS - 6_000)
    reads, takes = chance.sample(range(shape.clients), 2)
    key = ("scene/shorter",)
    operations = [Operation(at_ms - chance.randint(800, 1_500), takes, "put", number, key, number + SMALL)]
    for _ in range(2):
        number += 1
        operations.append(Operation(at_ms - chance.randint(10, 150), reads, "get", number, key))
    for _ in range(3):
        number += 1
        operations.append(Operation(at_ms + chance.randint(700, 1_700), takes, "remove", number, key))
    faults = [
        Fault(at_ms, "settings", chance.randint(2_500, 5_000), "lease_ttl_ms", "600"),
        Fault(at_ms + chance.randint(50, 150), "hand_over", 0),
    ]
    return operations, faults


def a_cancelled_writer(chance: random.Random, shape: ScriptShape, number: int) -> Scene:
    """A put is cancelled while its thread has yet to copy; others want the memory, when an idle grant would be back."""
    at_ms = chance.randint(1_000, FAULT_MS - 9_000)
    writer = chance.randrange(shape.clients)
    others = [client for client in range(shape.clients) if client != writer]
    cancel_ms = chance.randint(40, 250)
    put = Operation(at_ms, writer, "put", number, ("scene/cancelled",), number + BIG, cancel_ms=cancel_ms)
    operations = [put]
    for i in range(chance.randint(3, 5)):
        number += 2
        key = (f"scene/cancelled/{i}",)
        when_ms = at_ms + chance.randint(1_500, 2_500)
        operations.append(Operation(when_ms, chance.choice(others), "put", number - 1, key, number - 1 + BIG))
        operations.append(Operation(at_ms + chance.randint(7_000, 8_500), chance.choice(others), "get", number, key))
    return operations, [Fault(at_ms - 50, "slow_threads", cancel_ms + 40, f"client-{writer}", share=0.8)]


def puts_in_a_row(chance: random.Random, shape: ScriptShape, number: int) -> Scene:
    """A client puts a streak of large objects, each into memory that the commit before prefetched, while a fault hits
    it, the primary or the network between; others read them, and want the memory that it has left. After a while it
    goes on."""
    at_ms = chance.randint(1_000, FAULT_MS - 9_000)
    writer, reader = chance.sample(range(shape.clients), 2)
    operations: list[Operation] = []
    when_ms = at_ms
    for i in range(chance.randint(6, 12)):
        verb: Verb = "upsert" if chance.random() < 0.15 else "put"
        key = (f"scene/row/{i if chance.random() < 0.85 else 0}",)
        operations.append(Operation(when_ms, writer, verb, number, key, number + LARGE))
        operations.append(Operation(when_ms + chance.randint(20, 2_000), reader, "get", number + 1, key))
        when_ms += chance.choice((15, 60, 200))
        number += 2
    row_ended_ms = when_ms
    for i in range(chance.randint(2, 5)):
        # The memory that the streak has left is back a second after it.
        later_ms, key = row_ended_ms + chance.randint(1_050, 3_000), (f"scene/row/other/{i}",)
        operations.append(Operation(later_ms, reader, "put", number, key, number + chance.choice((LARGE, BIG))))
        operations.append(Operation(later_ms + chance.randint(300, 3_000), reader, "get", number + 1, key))
        number += 2
    again_ms = row_ended_ms + chance.randint(1_200, 3_000)
    for i in range(chance.randint(2, 5)):
        operations.append(Operation(again_ms, writer, "put", number, (f"scene/row/again/{i}",), number + LARGE))
        again_ms += chance.choice((20, 100))
        number += 1
    who = f"client-{writer}"
    happens_ms, lasts_ms = chance.randint(at_ms + 50, row_ended_ms), chance.choice((100, 1_500, 6_000))
    happens = chance.choice(
        (
            Fault(happens_ms, "kill_master", lasts_ms, PRIMARY),
            Fault(happens_ms, "pause_master", lasts_ms, PRIMARY),
            Fault(happens_ms, "pause_client", lasts_ms, who),
            Fault(happens_ms, "kill_client", lasts_ms, who),
            Fault(happens_ms, "cut", lasts_ms, PRIMARY, who),
            Fault(happens_ms, "slow_threads", lasts_ms, who, share=0.5),
        )
    )
    return operations, [happens]


def a_dying_node(chance: random.Random, shape: ScriptShape, number: int) -> Scene:
    """A client puts into the memory of its machine's node, one small object after another or a streak of larger ones,
    while that node is killed; it may also lose its connection to the primary for a moment before."""
    at_ms = chance.randint(1_500, FAULT_MS - 6_000)
    node = chance.randrange(min(shape.nodes, shape.clients))
    writers = [node, *(client for client in range(shape.clients) if client != node)]
    operations: list[Operation] = []
    when_ms = at_ms
    size = chance.choice((SMALL, SMALL, LARGE))
    for i in range(chance.randint(12, 30)):
        writer = node if chance.random() < 0.8 else chance.choice(writers)
        operations.append(Operation(when_ms, writer, "put", number, (f"scene/dying/{i}",), number + size))
        when_ms += chance.choice((1, 5, 20))
        number += 1
    lasts_ms = chance.choice((30, 800, 4_000))
    faults = [Fault(chance.randint(at_ms + 20, when_ms), "kill_node", lasts_ms, f"node-{node}")]
    if chance.random() < 0.5:
        faults.append(Fault(chance.randint(at_ms, when_ms), "reset", 0, PRIMARY, f"node-{node}"))
    return operations, faults


def a_crowded_node(chance: random.Random, shape: ScriptShape, number: int) -> Scene:
    """Objects of middling size fill the memory; some are pinned hard or soft, some read again and again. Then come puts
    for which several adjacent objects must be evicted."""
    at_ms = chance.randint(1_000, FAULT_MS - 12_000)
    operations: list[Operation] = []
    count = chance.randint(30, 60)
    when_ms = at_ms
    for i in range(count):
        pin: Literal["", "soft", "hard"] = chance.choices(("", "soft", "hard"), (8, 3, 1))[0]
        writer, size = chance.randrange(shape.clients), chance.choice((20_000, 40_000))
        put = Operation(when_ms, writer, "put", number, (f"scene/crowded/{i}",), number + size, pin=pin)
        operations.append(put)
        when_ms += chance.choice((5, 20, 60))
        number += 1
    for _ in range(chance.randint(6, 20)):
        key = (f"scene/crowded/{chance.randrange(count)}",)
        verb: Verb = chance.choice(("touch", "get", "force_remove"))
        operations.append(
            Operation(when_ms + chance.randint(0, 1_500), chance.randrange(shape.clients), verb, number, key)
        )
        number += 1
    for i in range(chance.randint(4, 8)):
        size = chance.choice((80_000, 160_000, 300_000))
        later_ms, writer = when_ms + chance.randint(500, 4_000), chance.randrange(shape.clients)
        operations.append(Operation(later_ms, writer, "put", number, (f"scene/long/{i}",), number + size))
        number += 1
    return operations, []


def a_stopped_primary(chance: random.Random, shape: ScriptShape, number: int) -> Scene:
    """The primary is stopped for a moment in which nobody may take it for dead: one client asks it for an object,
    another removes that, and the primary goes on before its leadership has run out."""
    at_ms = chance.randint(3_500, FAULT_MS - 3_000)
    asks, takes = chance.sample(range(shape.clients), 2)
    key = ("scene/stopped",)
    operations = [Operation(at_ms - chance.randint(600, 2_500), asks, "put", number, key, number + SMALL)]
    for _ in range(chance.randint(4, 10)):
        number += 1
        verb: Verb = chance.choice(("exists", "exists", "get"))
        operations.append(Operation(at_ms + chance.randint(0, 900), asks, verb, number, key))
    number += 1
    verb = chance.choice(("force_remove", "force_remove", "upsert"))
    operations.append(Operation(at_ms + chance.randint(20, 400), takes, verb, number, key, number + SMALL))
    return operations, [Fault(at_ms, "pause_master", chance.randint(250, 850), PRIMARY)]


def a_false_witness(chance: random.Random, shape: ScriptShape, number: int) -> Scene:
    """As a wrong guess, and the old primary refuses the nodes too: they go to the new primary, which asks them about
    the old one, while that one lives and a client still asks it."""
    operations, faults = a_wrong_guess(chance, shape, number)
    (refused,) = faults
    lasts_ms = refused.lasts_ms
    faults += [Fault(refused.at_ms, "refuse", lasts_ms, PRIMARY, f"node-{i}") for i in range(shape.nodes)]
    return operations, faults


def a_killed_primary(chance: random.Random, shape: ScriptShape, number: int) -> Scene:
    """The primary is killed; objects that it leased are still read, put and removed while it is replaced."""
    at_ms = chance.randint(3_500, FAULT_MS - 4_000)
    reads, takes = chance.sample(range(shape.clients), 2)
    keys = [f"scene/killed/{i}" for i in range(3)]
    operations: list[Operation] = []
    for key in keys:
        operations.append(Operation(at_ms - chance.randint(700, 2_000), takes, "put", number, (key,), number + SMALL))
        operations.append(Operation(at_ms - chance.randint(10, 600), reads, "view", number + 1, (key,), hold_ms=3_000))
        number += 2
    for _ in range(chance.randint(5, 9)):
        verb: Verb = chance.choice(("remove", "force_remove", "upsert", "put", "get"))
        when_ms, key = at_ms + chance.randint(50, 3_000), chance.choice(keys)
        operations.append(Operation(when_ms, chance.choice((reads, takes)), verb, number, (key,), number + SMALL))
        number += 1
    return operations, [Fault(at_ms, "kill_master", chance.choice((300, 2_000, 6_000)), PRIMARY)]


def an_emptied_store(chance: random.Random, shape: ScriptShape, number: int) -> Scene:
    """The store loses everything, under masters that run or that are all killed with it; after a while the operator
    begins a new history. The masters keep snapshots of the old one, with larger numbers than the new log will have for
    long. Objects put then must outlive masters that die one after another."""
    at_ms = chance.randint(5_000, FAULT_MS - 6_000)
    begins_ms = chance.randint(2_500, 4_000)
    with_masters = "masters" if chance.random() < 0.5 else ""
    operations: list[Operation] = []
    for i in range(chance.randint(2, 5)):
        client = chance.randrange(shape.clients)
        put_ms, key = min(FAULT_MS, at_ms + begins_ms + chance.randint(500, 2_500)), (f"scene/new/{i}",)
        operations.append(Operation(put_ms, client, "put", number, key, number + SMALL))
        read_ms = min(FAULT_MS, put_ms + chance.randint(500, 4_000))
        operations.append(Operation(read_ms, client, "get", number + 1, key))
        number += 2
    faults = [Fault(at_ms - ago_ms, "take_snapshots", 0) for ago_ms in (1_800, 900)]
    faults.append(Fault(at_ms, "wipe_store", begins_ms, with_masters))
    for _ in range(2):
        dies_ms = at_ms + begins_ms + chance.randint(2_500, 6_000)
        faults.append(Fault(dies_ms, "kill_master", chance.randint(200, 1_500), PRIMARY))
    return operations, faults


def a_restored_store(chance: random.Random, shape: ScriptShape, number: int) -> Scene:
    """The store loses everything, and the operator restores the history, from the newest state that the masters hold or
    from a snapshot that is older than the log was. Since that snapshot, objects were removed and others put, some
    where those had been. Clients read, put and remove all the while; the command may be repeated, and masters, nodes
    and clients may die or be stopped in the middle of it."""
    at_ms = chance.randint(6_000, FAULT_MS - 10_000)
    after_ms = chance.randint(600, 3_000)
    source = chance.choice(("newest", "newest", "kept"))
    faults = [
        Fault(at_ms - 3_000, "take_snapshots", 0),
        Fault(at_ms - chance.randint(100, 1_500), "take_snapshots", 0),
        Fault(at_ms, "wipe_store", after_ms, chance.choice(("", "", "masters")), source),
    ]
    faults += _around_a_restore(chance, shape, at_ms + after_ms)
    keys = [f"scene/restored/{i}" for i in range(8)]
    size = chance.choice((SMALL, LARGE, LARGE))
    parts: list[tuple[int, Verb, str]] = [(-chance.randint(3_400, 4_500), "put", key) for key in keys[:5]]
    parts += [(-chance.randint(1_800, 2_600), "force_remove", key) for key in keys[:3]]
    parts += [(-chance.randint(200, 1_700), "put", key) for key in keys[5:]]
    for _ in range(chance.randint(12, 24)):
        verb: Verb = chance.choice(("get", "get", "view", "get_many", "put", "upsert", "remove", "force_remove"))
        parts.append((chance.randint(-1_500, after_ms + 7_000), verb, chance.choice(keys)))
    operations = []
    for offset_ms, verb, key in parts:
        when_ms = min(FAULT_MS, at_ms + offset_ms)
        client, hold_ms = chance.randrange(shape.clients), chance.randint(1, 3_000)
        operations.append(Operation(when_ms, client, verb, number, (key,), number + size, hold_ms=hold_ms))
        number += 1
    # Drawn last, so that the rest of the scene is the same without it.
    since_ms = at_ms - faults[1].at_ms
    if source == "kept" and since_ms >= 700:
        more, worse = _doubted_leases(chance, shape, at_ms, since_ms, at_ms + after_ms, number)
        operations += more
        faults += worse
    return operations, faults


def _doubted_leases(
    chance: random.Random, shape: ScriptShape, lost_ms: int, since_ms: int, ordered_ms: int, number: int
) -> Scene:
    """Objects come back that were removed since the last snapshot, and whose ranges hold later ones; verification waits
    for a stopped writer. Until then a client gets leases on them; by its puts it learns, under those leases, that the
    memory is verified."""
    writer = chance.randrange(min(shape.nodes, shape.clients))
    reader = chance.choice([client for client in range(shape.clients) if client != writer])
    removed_ms = lost_ms - since_ms
    # Pinned, so that nothing evicts them before, and the gaps of the removed ones do not merge with others.
    keys = [f"scene/doubted/{i}" for i in range(7)]
    sizes = [64 * (328 + i) for i in range(7)]
    parts: list[tuple[int, int, Verb, str, int]] = [
        (lost_ms - 4_000 + 90 * i + chance.randint(0, 50), writer, "put", keys[i], sizes[i]) for i in range(7)
    ]
    removed = (1, 3, 5)
    for i in removed:
        parts.append((removed_ms + chance.randint(20, 150), writer, "force_remove", keys[i], 0))
        # A gap that it fits exactly is taken first: both are rounded up to the same 64 bytes.
        later_ms = removed_ms + chance.randint(300, 500)
        parts.append((later_ms, writer, "put", f"scene/doubted/later/{i}", sizes[i] - 32))
    lasts_ms = chance.randint(1_500, 2_500)
    for i in range(20):
        when_ms, new = ordered_ms + chance.randint(600, lasts_ms + 1_200), f"scene/doubted/new/{i}"
        parts.append((when_ms, reader, "exists", new, 0))
        parts.append((when_ms + chance.randint(5, 40), reader, "put", new, SMALL + number + len(parts)))
        parts.append((when_ms + chance.randint(10, 150), reader, "get", keys[chance.choice(removed)], 0))
    operations = [
        Operation(when_ms, client, verb, number + i, (key,), size, pin="hard" if key in keys else "")
        for i, (when_ms, client, verb, key, size) in enumerate(parts)
    ]
    stops_ms = lost_ms - chance.randint(0, 300)
    return operations, [Fault(stops_ms, "pause_client", ordered_ms + lasts_ms - stops_ms, f"client-{writer}")]


def _around_a_restore(chance: random.Random, shape: ScriptShape, ordered_ms: int) -> list[Fault]:
    """Faults while a history is restored, and soon after: each in some of the scenes."""
    master, node = f"master-{chance.randrange(shape.masters)}", f"node-{chance.randrange(shape.nodes)}"
    client = f"client-{chance.randrange(shape.clients)}"
    soon_ms = ordered_ms + chance.randint(250, 900)
    possible: tuple[tuple[float, Fault], ...] = (
        (0.4, Fault(ordered_ms + chance.randint(-500, 6_000), "restore", 0, "", chance.choice(("newest", "kept")))),
        (0.3, Fault(soon_ms, "take_snapshots", 0)),
        (0.3, Fault(soon_ms, "kill_master", chance.randint(100, 1_500), master)),
        (0.15, Fault(soon_ms, "pause_master", chance.randint(200, 3_000), master)),
        (0.15, Fault(soon_ms, "expire_leader", 0)),
        (0.15, Fault(soon_ms, "store_outage", chance.randint(200, 2_000))),
        (0.2, Fault(ordered_ms + chance.randint(-1_500, 2_000), "kill_node", chance.randint(100, 2_000), node)),
        (0.2, Fault(ordered_ms + chance.randint(-1_500, 1_000), "pause_node", chance.randint(500, 5_000), node)),
        (0.3, Fault(ordered_ms + chance.randint(-2_500, 500), "pause_client", chance.randint(1_000, 6_000), client)),
        (0.3, Fault(ordered_ms - chance.randint(200, 2_500), "slow_threads", 3_000, client, share=0.4)),
        (0.4, Fault(ordered_ms + chance.randint(1_500, 6_000), "kill_master", chance.randint(200, 1_500), PRIMARY)),
    )
    return [fault for share, fault in possible if chance.random() < share]


def an_engine(chance: random.Random, shape: ScriptShape, number: int) -> Scene:
    """A client reserves memory, fills it by parts and commits it, or abandons it while a thread still copies into it;
    others want the memory at once, hold leases on the objects that they find, and read them later."""
    at_ms = chance.randint(1_000, FAULT_MS - 9_000)
    writer = chance.randrange(shape.clients)
    others = [client for client in range(shape.clients) if client != writer]
    operations: list[Operation] = []
    for i in range(chance.randint(2, 4)):
        verb: Verb = chance.choice(("abandon", "abandon", "reserve"))
        key, hold_ms = (f"scene/reserved/{i}",), chance.randint(1, 300)
        when_ms = at_ms + chance.randint(0, 400)
        operations.append(Operation(when_ms, writer, verb, number, key, number + BIG, hold_ms=hold_ms))
        number += 1
    keys = tuple(f"scene/engine/{i}" for i in range(chance.randint(3, 5)))
    for key_ in keys:
        when_ms = at_ms + chance.randint(100, 2_500)
        operations.append(Operation(when_ms, chance.choice(others), "put", number, (key_,), number + BIG))
        number += 1
    for _ in range(3):
        when_ms, hold_ms = at_ms + chance.randint(500, 5_000), chance.randint(500, 4_000)
        client = chance.randrange(shape.clients)
        operations.append(Operation(when_ms, client, "hold", number, keys, hold_ms=hold_ms))
        number += 1
    for key_ in (*keys, "scene/reserved/0", "scene/reserved/1"):
        when_ms = at_ms + chance.randint(5_000, 8_500)
        operations.append(Operation(when_ms, chance.choice(others), "get", number, (key_,)))
        number += 1
    return operations, [Fault(at_ms - 50, "slow_threads", 1_500, f"client-{writer}", share=0.8)]


def a_successor(chance: random.Random, shape: ScriptShape, number: int) -> Scene:
    """Clients put with durability `standby`, so that a standby holds the tail of the log, which comes late or not at
    all for a while. Then the primary dies, is stopped or is deposed; the masters may have lost their connections."""
    at_ms = chance.randint(6_000, FAULT_MS - 6_000)
    moments = [at_ms - chance.randint(200, 4_000) for _ in range(12)] + [
        at_ms - chance.randint(0, 200) for _ in range(20)
    ]
    moments += [at_ms + chance.randint(0, 2_500) for _ in range(12)]
    operations: list[Operation] = []
    for i, when_ms in enumerate(sorted(moments)):
        client, key = chance.randrange(shape.clients), (f"scene/successor/{i}",)
        operations.append(Operation(when_ms, client, "put", number, key, number + SMALL, durability="standby"))
        read_ms = min(FAULT_MS, when_ms + chance.choice((30, 500, 5_000)))
        operations.append(Operation(read_ms, chance.randrange(shape.clients), "get", number + 1, key))
        number += 2
    lasts_ms = chance.choice((300, 2_000, 6_000))
    end = chance.choices(
        (
            [Fault(at_ms, "kill_master", lasts_ms, PRIMARY)],
            [Fault(at_ms, "pause_master", lasts_ms, PRIMARY)],
            [Fault(at_ms, "expire_leader", 0), Fault(at_ms - 50, "lost_watches", 2_000, share=0.8)],
            [Fault(at_ms, "refuse", lasts_ms, PRIMARY, "client-0")],
            [Fault(at_ms, "hand_over", 0)],
        ),
        (6, 1, 2, 1, 1),
    )[0]
    before_ms = chance.randint(300, 2_500)
    trouble = chance.choices(
        (
            [],
            [Fault(at_ms - before_ms, "late_store", before_ms + 1_500, share=chance.choice((0.3, 0.8)))],
            [Fault(at_ms - before_ms, "store_outage", before_ms + chance.randint(-200, 200))],
            [
                Fault(
                    at_ms - before_ms, "kill_master", 500, chance.choice([f"master-{i}" for i in range(shape.masters)])
                )
            ],
        ),
        (1, 4, 4, 1),
    )[0]
    if chance.random() < 0.4:
        reset_ms = at_ms - chance.randint(100, before_ms)
        trouble = trouble + [Fault(reset_ms, "reset", 0, PRIMARY, f"master-{i}") for i in range(shape.masters)]
    return operations, end + trouble


def changed_pins(chance: random.Random, shape: ScriptShape, number: int) -> Scene:
    """Clients pin and unpin objects after they were put, while others remove and replace some of them; the primary is
    killed, stopped or hands over. Then puts come that fill the memory twice, for which the oldest objects must go."""
    at_ms = chance.randint(5_000, FAULT_MS - 7_000)
    keys = [f"scene/pinned/{i}" for i in range(8)]
    parts: list[tuple[int, Verb, str, int]] = [(-chance.randint(2_500, 4_000), "put", key, LARGE) for key in keys]
    for _ in range(chance.randint(12, 24)):
        verb: Verb = chance.choices(("pin", "unpin", "get", "force_remove", "remove", "upsert"), (10, 3, 2, 1, 1, 1))[0]
        parts.append((chance.choice((-1, 1)) * chance.randint(0, 2_000), verb, chance.choice(keys), LARGE))
    filling = min(40, 2 * shape.nodes * shape.segment_bytes // BIG)
    parts += [(chance.randint(1_000, 7_000), "put", f"scene/filling/{i}", BIG) for i in range(filling)]
    parts += [(chance.randint(5_000, 7_000), "get", key, 0) for key in keys]
    operations = []
    for i, (offset_ms, verb, key, size) in enumerate(parts):
        pin: Literal["", "soft", "hard"] = chance.choice(("hard", "hard", "hard", "soft")) if verb == "pin" else ""
        client = chance.randrange(shape.clients)
        operations.append(Operation(at_ms + offset_ms, client, verb, number + i, (key,), number + i + size, pin=pin))
    end: FaultKind = chance.choice(("kill_master", "kill_master", "pause_master", "hand_over"))
    faults = [Fault(at_ms, end, chance.choice((300, 2_000, 6_000)), PRIMARY)]
    if chance.random() < 0.3:
        before_ms = chance.randint(200, 1_000)
        faults.append(Fault(at_ms - before_ms, "late_store", before_ms, share=0.8))
    return operations, faults


SCENES: dict[str, tuple[float, Callable[[random.Random, ScriptShape, int], Scene]]] = {
    "wrong guess": (0.06, a_wrong_guess),
    "late writer": (0.12, a_late_writer),
    "shorter leases": (0.05, shorter_leases),
    "cancelled writer": (0.08, a_cancelled_writer),
    "puts in a row": (0.08, puts_in_a_row),
    "dying node": (0.10, a_dying_node),
    "crowded node": (0.10, a_crowded_node),
    "stopped primary": (0.1, a_stopped_primary),
    "killed primary": (0.06, a_killed_primary),
    "false witness": (0.1, a_false_witness),
    "emptied store": (0.06, an_emptied_store),
    "restored store": (0.08, a_restored_store),
    "engine": (0.0, an_engine),
    "successor": (0.0, a_successor),
    "changed pins": (0.0, changed_pins),
}
"""The share of seeds with each scene, and how it is drawn. The last three have none, so that the seeds that found bugs
play what they played: they are asked for by name."""
