"""Tenants in a world: whose client each is, their quotas, and what they do beside the rest of the script (ADR 50).

In a sixth of the seeds clients belong to two or three tenants, sometimes with the default one beside them. They use the
same keys, which are other objects in each tenant, and keys of their own, which nobody else may find. The operator
gives them quotas and changes these while everything goes wrong. All of it is drawn from streams of its own: a seed
without tenants plays what it would play if there were none.
"""

from __future__ import annotations

import random

import msgspec

from holdfast.simulation.scripts.script import BIG, FAULT_MS, Fault, Operation, ScriptShape, Verb

TENANTS = "tenants"
"""As a scene: tenants for sure, and no scene beside them."""
SHARE = 1 / 6
NAMES = ("red", "green", "blue")
DEFAULT = "default"
FIRST_NUMBER = 600
"""The first number of these operations: scenes have smaller ones."""
OWN_KEYS = 4
VERBS: dict[Verb, int] = {"put": 10, "upsert": 2, "get": 8, "list": 5, "pry": 3, "touch": 2, "remove_matching": 1}


def has_tenants(seed: int, scene: str) -> bool:
    return scene == TENANTS or (not scene and random.Random(f"tenants {seed}").random() < SHARE)


def with_tenants(seed: int, shape: ScriptShape) -> ScriptShape:
    """The same world with tenants: at least three clients, and mostly little memory, so that they need each other's."""
    chance = random.Random(f"tenants' clients {seed}")
    names = NAMES[: chance.choice((2, 2, 3))]
    clients = max(shape.clients, 3, len(names))
    # Each has a client; further clients belong to one of them, or to the default tenant.
    drawn = [*names, *(chance.choice((*names, "", "")) for _ in range(clients - len(names)))]
    chance.shuffle(drawn)
    return msgspec.structs.replace(
        shape,
        clients=clients,
        segment_bytes=chance.choice((1 << 20, 1 << 20, shape.segment_bytes)),
        tenants=tuple(drawn),
        remote=tuple(name for name in names if chance.random() < 0.4),
    )


def draw_tenants(seed: int, shape: ScriptShape, wiped: bool) -> tuple[list[Operation], list[Fault]]:
    """What the tenants' clients do beside the rest, and what the operator does about their quotas. `wiped`: the store
    is; a restore could bring back quotas that keep clients waiting, so there are none of these."""
    return _operations(seed, shape), _quotas(seed, shape, wiped)


def _operations(seed: int, shape: ScriptShape) -> list[Operation]:
    chance = random.Random(f"tenants' operations {seed}")
    verbs, weights = list(VERBS), list(VERBS.values())
    found: list[Operation] = []
    for number in range(FIRST_NUMBER, FIRST_NUMBER + chance.randint(30, 70)):
        client = chance.randrange(shape.clients)
        verb = chance.choices(verbs, weights)[0]
        # Others ask for them, too, and find nothing.
        whose = shape.tenant_of(client if chance.random() < 0.8 or verb != "get" else chance.randrange(shape.clients))
        key = f"own/{whose or DEFAULT}/{chance.randrange(OWN_KEYS)}"
        size = number + (BIG if chance.random() < 0.4 else chance.choice((1_000, 20_000)))
        keys = {"list": (chance.choice(("", "own/")),), "pry": ()}.get(verb, (key,))
        size = size if verb in ("put", "upsert") else 0
        found.append(Operation(chance.randint(1_500, FAULT_MS), client, verb, number, keys, size))
    return found


def _quotas(seed: int, shape: ScriptShape, wiped: bool) -> list[Fault]:
    """Quotas at the beginning, changes of them later, and some for a while that keep clients waiting."""
    chance = random.Random(f"quotas {seed}")
    names = sorted({name or DEFAULT for name in shape.tenants})
    found = [
        Fault(chance.randint(600, 2_500), "quotas", 0, name, _drawn(chance, shape)) for name in names if name != DEFAULT
    ]
    for _ in range(chance.randint(1, 5)):
        at_ms = chance.randint(3_000, FAULT_MS - 1_000)
        found.append(Fault(at_ms, "quotas", 0, chance.choice(names), _drawn(chance, shape)))
    if chance.random() < 0.3 and not wiped:
        name = chance.choice([name for name in names if name != DEFAULT])
        quota = chance.choice(({"requests_per_second": 3}, {"max_clients": 1}))
        at_ms, lasts_ms = chance.randint(3_000, FAULT_MS - 4_000), chance.randint(500, 3_000)
        found.append(Fault(at_ms, "quotas", lasts_ms, name, msgspec.json.encode(quota).decode()))
    return found


def _drawn(chance: random.Random, shape: ScriptShape) -> str:
    """Quotas that can be kept, mostly: guarantees beyond the watermark are refused."""
    capacity = shape.nodes * shape.segment_bytes
    guarantee = chance.choice((0, 0.05, 0.15, 0.3)) * capacity
    limit = chance.choice((0, 0.2, 0.35, 0.6)) * capacity
    quotas = {
        "guaranteed_bytes": int(min(guarantee, limit) if limit else guarantee),
        "limit_bytes": int(limit),
        "max_objects": chance.choice((0, 0, 0, 2, 5)),
        "hard_pin_share": chance.choice((1.0, 1.0, 0.0, 0.02)),
        "lease_share": chance.choice((None, None, 0.1, 0.4)),
    }
    return msgspec.json.encode(quotas).decode()
