"""Decoders of bytes that others wrote, in this process: altered bytes give a value or a typed error, never another.

A target has good examples, a way to alter one, and `run`, which raises if the bytes were handled wrongly. The corpus
holds inputs that were once: each is run first, by `make fuzz` and by `make check`.
"""

from __future__ import annotations

import contextlib
import functools
import struct
import typing
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

import msgspec
import xxhash

from holdfast.coordination import codec as entries
from holdfast.coordination.interface import CoordinationLost, Leader
from holdfast.coordination.terms import TermRecord
from holdfast.core.catalogue.digest import digest
from holdfast.core.promotion import promote
from holdfast.core.rules import Rules
from holdfast.core.state.renewals import take_renewed
from holdfast.errors import BadRequest, BadValue
from holdfast.identity.identities_file import parse_identities
from holdfast.messages import commands, requests
from holdfast.messages.shapes import Message
from holdfast.replication.batches import BrokenChain, Position, UnknownRecord, encode_batch, encode_record
from holdfast.replication.renewals import BadRenewals, RenewalReceiver, decode_value, encode_value
from holdfast.replication.snapshots import MAGIC, CorruptSnapshot, dump, found_in, head_of, load, verify
from holdfast.replication.standby import Standby
from holdfast.wire import codec
from holdfast.wire.codec import FrameBuffer, frame
from tests.core.world import World
from tests.fuzz.mutation import Mutator

StructT = TypeVar("StructT", bound=msgspec.Struct)
NOW = 2_000_000
SECTION = struct.Struct("<16sQQ")
LOG_HEAD = 32


@dataclass(frozen=True)
class Target:
    name: str
    seeds: Callable[[], list[bytes]]
    run: Callable[[bytes], None]
    alter: Callable[[Mutator, bytes], bytes] = Mutator.altered


# Messages.


def examples(kinds: tuple[type[Message], ...]) -> list[bytes]:
    """One message of each kind, its fields with the simplest value of their types."""
    return [codec.encode(simplest(kind)) for kind in kinds]


def simplest(kind: type[StructT]) -> StructT:
    required = [field for field in msgspec.structs.fields(kind) if field.required]
    return kind(**{field.name: _value_of(field.type) for field in required})


def _value_of(kind: object) -> object:
    text = str(kind)
    if kind is int or text.startswith("<class 'int"):
        return 1
    for one, value in (("str", "k"), ("bytes", bytes(48)), ("bool", True), ("float", 1.0)):
        if getattr(kind, "__name__", "") == one:
            return value
    if isinstance(kind, type) and issubclass(kind, tuple):
        return kind(*(_value_of(hint) for hint in typing.get_type_hints(kind).values()))
    if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
        return simplest(kind)
    for sample in ([], {}, 1, "k", b"", None, [1], ["k"], [1, 1], [1, "k"]):
        with contextlib.suppress(msgspec.ValidationError, TypeError):
            return msgspec.convert(sample, kind)  # type: ignore[call-overload, no-any-return]
    raise TypeError(f"no example of {kind!r}: add one here")


def decodes(decode: codec.Decode) -> Callable[[bytes], None]:
    def run(data: bytes) -> None:
        with contextlib.suppress(BadRequest):
            codec.encode(decode(data))

    return run


def run_frames(data: bytes) -> None:
    buffer = FrameBuffer(1 << 20)
    with contextlib.suppress(BadRequest):
        for start in range(0, len(data), 999):
            part = data[start : start + 999]
            buffer.space()[: len(part)] = part
            buffer.filled(len(part))
            while (one := buffer.next_frame()) is not None:
                codec.tag_of(one[2])
                with contextlib.suppress(BadRequest):
                    codec.decode_request(one[2])


def run_command(data: bytes) -> None:
    for kind in commands.BODIES.values():
        with contextlib.suppress(BadRequest):
            commands.decode_body(kind, data)


# The log, snapshots, renewals and entries of the store.


@functools.cache
def history() -> tuple[list[bytes], list[Position], bytes]:
    """The batches of a log in which much happened, the position after each, and a snapshot of its end."""
    world = World()
    world.node("a", size=1 << 20)
    world.node("b", size=1 << 20, boot=6, connection=101)
    world.put(*(f"k{number}" for number in range(40)), size=900)
    world.put("r1", "r2", replicas=2)
    world.put("soft", soft_pin=True)
    world.put("k1", upsert=True)
    world.locate("k2", "k3")
    world.remove("k4", "k5")
    world.remove("k2", force=True)
    world.grant(5_000)
    world.pass_time(60_000)
    positions, batches = [Position()], []
    for start in range(0, len(world.primary.records), 3):
        records = [encode_record(record) for record in world.primary.records[start : start + 3]]
        batch, after = encode_batch(positions[-1], records)
        batches.append(batch)
        positions.append(after)
    content = b"".join(dump(world.primary.twin, positions[-1], world.now))
    return batches, positions, content


@functools.cache
def before_batch(number: int) -> bytes:
    """A snapshot of the log before that batch."""
    batches, positions, _ = history()
    standby = Standby()
    for index in range(number):
        standby.take(index + 1, batches[index], NOW)
    return b"".join(dump(standby.state, positions[number], NOW))


def log_seeds() -> list[bytes]:
    """Each with the number of its batch in front, so that it is applied where it belongs."""
    return [bytes([number]) + batch for number, batch in enumerate(history()[0])]


def alter_log(mutator: Mutator, good: bytes) -> bytes:
    """Mostly the records alone: an altered head is refused before they are looked at."""
    cut = 1 + LOG_HEAD
    if mutator.random.random() < 0.1:
        return good[:1] + mutator.altered(good[1:])
    body = mutator.altered(good[cut:])
    with contextlib.suppress(msgspec.MsgspecError, ValueError, RecursionError):
        count = len(msgspec.msgpack.decode(body, type=list[msgspec.Raw]))
        return good[:5] + struct.pack("<I", count) + good[9:cut] + body
    return good[:cut] + body


def run_log(data: bytes) -> None:
    number = data[0] % len(history()[0]) if data else 0
    restored = load(before_batch(number), NOW)
    standby = Standby(restored.state, restored.position)
    before = digest(standby.state.catalogue)
    try:
        standby.take(number + 1, data[1:], NOW)
    except (BrokenChain, UnknownRecord):
        assert standby.position in (restored.position, Position())
        unchanged = standby.position == Position() or digest(standby.state.catalogue) == before
        assert unchanged, "refused, and applied in part"


def sealed(data: bytes) -> bytes:
    """The snapshot with the checksums that its sections would have, as whoever alters it on purpose would write it."""
    at, made = len(MAGIC), [data[: len(MAGIC)]]
    while at + SECTION.size <= len(data):
        name, length, _ = SECTION.unpack_from(data, at)
        content = data[at + SECTION.size : at + SECTION.size + length]
        made += [SECTION.pack(name, len(content), xxhash.xxh3_64_intdigest(content)), content]
        at += SECTION.size + length
    return b"".join(made) + data[at:]


def alter_snapshot(mutator: Mutator, good: bytes) -> bytes:
    """One section altered, and all sealed again."""
    at, sections = len(MAGIC), []
    while at + SECTION.size <= len(good):
        name, length, _ = SECTION.unpack_from(good, at)
        sections.append((name, good[at + SECTION.size : at + SECTION.size + length]))
        at += SECTION.size + length
    if not sections:
        return mutator.altered(good)
    chosen = 0 if mutator.random.random() < 0.5 else mutator.random.randrange(len(sections))
    name, content = sections[chosen]
    sections[chosen] = (name, mutator.altered(content))
    parts = (SECTION.pack(name, len(content), 0) + content for name, content in sections)
    made = good[: len(MAGIC)] + b"".join(parts)
    return sealed(made) if mutator.random.random() < 0.9 else mutator.altered(made)


def run_snapshot(data: bytes) -> None:
    for look in (verify, head_of, functools.partial(found_in, where="here")):
        with contextlib.suppress(CorruptSnapshot):
            look(data)
    try:
        restored = load(data, NOW)
    except CorruptSnapshot:
        return
    digest(restored.state.catalogue)
    with contextlib.suppress(ValueError):  # A primary that cannot account for all memory serves nothing (I9, I15).
        promote(restored.state, Rules(), NOW, proven=True, now=NOW)


def renewal_seeds() -> list[bytes]:
    state = load(history()[2], NOW).state
    state.catalogue.renewed[: state.catalogue.top] = 1
    return [encode_value(state.log_id, 3, number, 1_000 * number, take_renewed(state, NOW)) for number in (1, 2)]


def run_renewals(data: bytes) -> None:
    with contextlib.suppress(BadRenewals):
        decode_value(data)
    state = load(history()[2], NOW).state
    before = digest(state.catalogue)
    receiver = RenewalReceiver()
    for at in (NOW, NOW + 500):
        receiver.take(state, {"renewals/1": data, "renewals/2": renewal_seeds()[0]}, at)
    assert digest(state.catalogue) == before, "renewals change no object (I7)"


def entry_seeds() -> list[bytes]:
    record = TermRecord(7, "127.0.0.1:7070")
    return [
        entries.encode_record(record),
        entries.encode_leader(Leader(7, "127.0.0.1:7070")),
        entries.encode_batch(7, 900, b"batch"),
        entries.encode_tail(7, 900),
    ]


def run_entries(data: bytes) -> None:
    for decode in (
        entries.decode_record,
        lambda value: entries.decode_process(value, TermRecord(7, "a")),
        entries.decode_process_name,
        entries.decode_leader,
        entries.decode_batch,
        lambda value: entries.decode_tail(value, 1),
        lambda value: entries.decode_ttl("name", value),
        lambda value: entries.decode_text("name", value),
    ):
        with contextlib.suppress(CoordinationLost):
            decode(data)


# The file of identities.

IDENTITIES = """
[[identity]]
name = "trainer"
roles = ["writer"]
tokens = ["sha256:{zeros}"]
certificates = ["trainer.example"]
tenant = "blue"
not_after = 2027-06-30
shared_memory = false

[[identity]]
name = "node-1"
roles = ["node"]
tokens = ["sha256:{ones}"]
not_after = 2027-06-30T12:00:00Z
"""


def identity_seeds() -> list[bytes]:
    return [IDENTITIES.format(zeros="0" * 64, ones="1" * 64).encode()]


def run_identities(data: bytes) -> None:
    with contextlib.suppress(BadValue):
        parse_identities(data.decode(errors="surrogateescape"), "here")


def alter_text(mutator: Mutator, good: bytes) -> bytes:
    words = [
        b"[",
        b"]",
        b"=",
        b'"',
        b"'''",
        b"[[identity]]",
        b"name.x = 1",
        b"1e999",
        b"0x7f",
        b"nan",
        b"9999-99-99",
        b"{",
    ]
    words += [b"[" * 3_000, b"\\ud800", b"0000-01-01T00:00:00Z", b"9999-12-31T23:59:59-23:59", b"9" * 5_000, b"\xff"]
    data = bytearray(good)
    for _ in range(mutator.random.choice((1, 1, 3))):
        at = mutator.random.randrange(len(data) + 1)
        data[at : at + mutator.random.choice((0, 1, 5, 20))] = mutator.random.choice(words)
    return bytes(data)


TARGETS = {
    target.name: target
    for target in (
        Target("requests", lambda: examples(codec.REQUESTS), decodes(codec.decode_request)),
        Target("replies", lambda: examples(codec.REPLIES), decodes(codec.decode_reply)),
        Target("data-requests", lambda: examples(codec.DATA_REQUESTS), decodes(codec.decode_data_request)),
        Target("data-replies", lambda: examples(codec.DATA_REPLIES), decodes(codec.decode_data_reply)),
        Target("frames", lambda: [frame(1, 9, codec.encode(requests.Exists(["k"]))) * 3], run_frames),
        Target("commands", lambda: examples(tuple({*commands.BODIES.values()})), run_command),
        Target("log", log_seeds, run_log, alter_log),
        Target("snapshots", lambda: [history()[2]], run_snapshot, alter_snapshot),
        Target("renewals", renewal_seeds, run_renewals),
        Target("entries", entry_seeds, run_entries),
        Target("identities", identity_seeds, run_identities, alter_text),
    )
}
