"""A script from a seed: operations, faults and scenes, each from a random stream of its own.

All of it is drawn before the run begins, so that leaving one out does not shift the others. Each seed also switches
whole classes of faults on or off (a swarm): faults that always happen together hide bugs that need one without others.
"""

from __future__ import annotations

import random

import msgspec

from holdfast.settings import PRESETS
from holdfast.simulation.scripts.scenes import draw_scenes
from holdfast.simulation.scripts.script import (
    BIG,
    DISK_FAULTS,
    FAULT_MS,
    FAULTS,
    KEYS,
    VERBS,
    Fault,
    FaultKind,
    Operation,
    Script,
    ScriptShape,
)
from holdfast.simulation.scripts.tenants import draw_tenants, has_tenants, with_tenants

SETTINGS = (("lease_ttl_ms", ("600", "2800")), ("high_watermark", ("0.3", "0.6")))
"""Settings that are changed while the cluster runs, and their values. A lease and the leader's time stay below a
grant's timeout."""


def draw(seed: int, shape: ScriptShape | None = None, scene: str = "") -> Script:
    """Draw a script. `scene`: with this scene, and no other; "tenants": with tenants, and no scene. A shape that is
    given has no tenants."""
    tenants = shape is None and has_tenants(seed, scene)
    shape = shape if shape is not None else draw_shape(seed)
    shape = with_tenants(seed, shape) if tenants else shape
    of_scenes, faults = draw_scenes(seed, shape, scene)
    wiped = any(fault.kind == "wipe_store" for fault in faults)
    of_tenants, quotas = draw_tenants(seed, shape, wiped) if tenants else ([], [])
    operations = (*with_cancels(seed, with_pins(seed, draw_operations(seed, shape))), *of_scenes, *of_tenants)
    return Script(
        seed,
        shape,
        tuple(sorted(operations, key=lambda each: (each.at_ms, each.number))),
        tuple(sorted((*draw_faults(seed, shape), *faults, *quotas), key=lambda fault: (fault.at_ms, fault.kind))),
    )


def draw_shape(seed: int) -> ScriptShape:
    chance = random.Random(f"shape {seed}")
    return ScriptShape(
        masters=chance.choices((2, 3), (5, 1))[0],
        nodes=chance.choices((1, 2, 3), (1, 5, 1))[0],
        clients=chance.choices((2, 3, 4), (1, 4, 1))[0],
        segment_bytes=chance.choice((1 << 20, 1 << 20, 4 << 20)),
        slowest_ms=chance.choices((1, 20, 100), (3, 2, 1))[0],
        preset=chance.choices(list(PRESETS), (10, 1, 1, 1, 2, 1))[0],
        disk_bytes=draw_disk(seed),
    )


def draw_disk(seed: int) -> int:
    """The disk size of each node. In a fifth of the worlds nodes have a disk, sometimes one so small that it evicts."""
    chance = random.Random(f"disks {seed}")
    return 0 if chance.random() >= 0.2 else chance.choice((512 << 10, 8 << 20, 8 << 20))


def draw_operations(seed: int, shape: ScriptShape) -> tuple[Operation, ...]:
    chance = random.Random(f"operations {seed}")
    count = chance.randint(60, 160)
    keys = [f"key/{i}" for i in range(chance.choice((2, 4, KEYS)))]
    verbs, weights = list(VERBS), list(VERBS.values())
    crowded = chance.random() < 0.5
    found = []
    for number in range(1, count + 1):
        verb = chance.choices(verbs, weights)[0]
        many = verb in ("put_many", "get_many")
        # Every value of a run has a unique size, so that the log shows which put it is of.
        size = number + (BIG if chance.random() < (0.5 if crowded else 0.15) else chance.choice((64, 1_000, 4_000)))
        found.append(
            Operation(
                at_ms=chance.randint(500, FAULT_MS),
                client=chance.randrange(shape.clients),
                verb=verb,
                number=number,
                keys=tuple(sorted(chance.sample(keys, min(len(keys), 3)))) if many else (chance.choice(keys),),
                size_bytes=size,
                replicas=2 if shape.nodes > 1 and chance.random() < 0.2 else 1,
                # A lost upsert brings back the object that it replaced: that is documented, and not checked here.
                durability="memory" if chance.random() < 0.05 and verb != "upsert" else None,
                hold_ms=chance.randint(1, 4_000),
            )
        )
    return tuple(sorted(found, key=lambda each: (each.at_ms, each.number)))


def with_pins(seed: int, operations: tuple[Operation, ...]) -> tuple[Operation, ...]:
    """In half of the seeds, pin some objects; only small ones hard, or there would be no room for others."""
    chance = random.Random(f"pins {seed}")
    if chance.random() < 0.5:
        return operations
    return tuple(_pinned(chance, one) if one.verb in ("put", "upsert") else one for one in operations)


def with_cancels(seed: int, operations: tuple[Operation, ...]) -> tuple[Operation, ...]:
    """In a third of the seeds, cancel some calls: puts mostly while they copy, which is soon."""
    chance = random.Random(f"cancels {seed}")
    if chance.random() < 0.67:
        return operations
    cancelled = [chance.choice((2, 5, 20, 300)) if chance.random() < 0.15 else 0 for _ in operations]
    return tuple(msgspec.structs.replace(one, cancel_ms=ms) for one, ms in zip(operations, cancelled, strict=True))


def _pinned(chance: random.Random, operation: Operation) -> Operation:
    pin = chance.choices(("", "soft", "hard"), (6, 2, 2 if operation.size_bytes < BIG else 0))[0]
    return msgspec.structs.replace(operation, pin=pin)


def draw_faults(seed: int, shape: ScriptShape) -> tuple[Fault, ...]:
    swarm = random.Random(f"swarm {seed}")
    chosen = [kind for kind in FAULTS if swarm.random() < (0.8 if kind in DISK_FAULTS else 0.35)]
    if not shape.disk_bytes:
        chosen = [kind for kind in chosen if kind not in DISK_FAULTS]
    masters = [f"master-{i}" for i in range(shape.masters)]
    nodes = [f"node-{i}" for i in range(shape.nodes)]
    clients = [f"client-{i}" for i in range(shape.clients)]
    found: list[Fault] = []
    for kind in chosen:
        chance = random.Random(f"{kind} {seed}")
        found += [_draw_fault(kind, chance, masters, nodes, clients) for _ in range(chance.randint(1, 3))]
    return tuple(sorted(found, key=lambda fault: (fault.at_ms, fault.kind)))


def _draw_fault(
    kind: FaultKind, chance: random.Random, masters: list[str], nodes: list[str], clients: list[str]
) -> Fault:
    at_ms = chance.randint(1_000, FAULT_MS - 1_000)
    lasts_ms = int(chance.choice((50, 400, 1_500, 4_000, 9_000)) * chance.uniform(0.5, 1.5))
    share = chance.choice((0.1, 0.3, 0.8))
    everybody = [*masters, *nodes, *clients]
    match kind:
        case "kill_master" | "pause_master" | "spoil_snapshot":
            return Fault(at_ms, kind, lasts_ms, chance.choice(masters))
        case "refuse":
            return Fault(at_ms, kind, lasts_ms, chance.choice(masters), chance.choice(clients))
        case "settings":
            name, values = chance.choice(SETTINGS)
            return Fault(at_ms, kind, lasts_ms, name, chance.choice(values))
        case "kill_node" | "pause_node" | "command" | "drain":
            return Fault(at_ms, kind, lasts_ms, chance.choice(nodes))
        case "lose_files" | "spoil_files":
            return Fault(at_ms, kind, 0, chance.choice(nodes), share=chance.choice((share, 1.0)))
        case "slow_disk":
            return Fault(at_ms, kind, lasts_ms, chance.choice(nodes), share=share)
        case "kill_client" | "pause_client":
            return Fault(at_ms, kind, lasts_ms, chance.choice(clients))
        case "fade":
            return Fault(at_ms, kind, chance.randint(6_000, 9_000), chance.choice([*nodes, *nodes, *masters, *clients]))
        case "slow_threads":
            return Fault(at_ms, kind, lasts_ms, chance.choice(everybody), share=share)
        case "partition":
            return Fault(at_ms, kind, lasts_ms, chance.choice(everybody))
        case "cut":
            one, other = chance.sample([*everybody, "store"], 2)
            return Fault(at_ms, kind, lasts_ms, one, other)
        case "reset":
            return Fault(at_ms, kind, 0, chance.choice(masters), chance.choice([*nodes, *clients]))
        case _:
            return Fault(at_ms, kind, lasts_ms, share=share)
