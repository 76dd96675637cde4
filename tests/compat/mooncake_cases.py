"""What is asked of a `mooncake.store`, as a table: the same cases are put to the real module and to holdfast's.

It needs the standard library alone, so that it runs inside any engine's environment:

    python mooncake_cases.py MASTER_ADDRESS        # asks the `mooncake.store` that can be imported; prints JSON

A case is asked of one store in the order of the table. Where holdfast answers otherwise by design, the case has the
answer (`ours`) and the reason (`why`). Where the real module would crash, it is not asked (`crashes`).
"""

from __future__ import annotations

import ctypes
import importlib
import json
import os
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

MIB = 1 << 20
SEGMENT_BYTES = 256 * MIB
BUFFER_BYTES = 64 * MIB
UNSET = "as the real one"


class Scene:
    """The store that is asked, its module, and four MiB of memory to read from and write to."""

    def __init__(self, module: Any, address: str) -> None:
        self.module = module
        self.address = address
        self.buffer = ctypes.create_string_buffer(4 * MIB)
        self.ptr = ctypes.addressof(self.buffer)
        self.other = self.ptr + 2 * MIB
        self.new = module.MooncakeDistributedStore()
        """Never set up."""
        self.s = module.MooncakeDistributedStore()

    def fill(self, data: bytes, at: int = 0) -> int:
        ctypes.memmove(self.ptr + at, data, len(data))
        return self.ptr + at

    def seen(self, size: int, at: int = 0) -> bytes:
        return ctypes.string_at(self.other + at, size)

    def wipe(self) -> None:
        ctypes.memset(self.other, 0, 2 * MIB)

    def setup(self, store: Any, **changed: Any) -> int:
        plain = {
            "local_hostname": "127.0.0.1",
            "metadata_server": "P2PHANDSHAKE",
            "global_segment_size": SEGMENT_BYTES,
            "local_buffer_size": BUFFER_BYTES,
            "protocol": "tcp",
            "rdma_devices": "",
            "master_server_addr": self.address,
        }
        return int(store.setup(*{**plain, **changed}.values()))

    def setup_dict(self, **changed: Any) -> int:
        """Of a store that is closed again."""
        settings = {
            "local_hostname": "127.0.0.1",
            "metadata_server": "P2PHANDSHAKE",
            "global_segment_size": "16MB",
            "local_buffer_size": "16MB",
            "protocol": "tcp",
            "master_server_addr": self.address,
            **changed,
        }
        store = self.module.MooncakeDistributedStore()
        try:
            return int(store.setup({name: value for name, value in settings.items() if value is not None}))
        finally:
            store.close()

    def config(self, **fields: Any) -> Any:
        made = self.module.ReplicateConfig()
        for name, value in fields.items():
            setattr(made, name, value)
        return made


def parts_of(handle: Any) -> Any:
    return (
        type(handle).__name__,
        handle.size(),
        bytes(memoryview(handle)),
        ctypes.string_at(handle.ptr(), handle.size()),
    )


def shape_of(view: memoryview) -> Any:
    return view.readonly, view.format, view.shape, view.nbytes


@dataclass(frozen=True)
class Case:
    name: str
    ask: Callable[[Scene], Any]
    ours: Any = UNSET
    """What holdfast answers, where that is another answer."""
    why: str = ""
    crashes: bool = False
    """The real module ends the process here; it is not asked."""


NOT_LEASED = "probes take no lease, and a client's own reads do not keep it from removing once they have ended"
OUTLIVES = "objects live in nodes, not in the client that put them: they are there after it closed"
NO_CRASH = "the real module ends the process with a segmentation fault; here it is an error code"

BEFORE = [
    Case("health_check before setup", lambda c: c.new.health_check()),
    Case("get before setup", lambda c: c.new.get("a")),
    Case("close before setup", lambda c: c.new.close()),
    Case("put before setup", lambda c: c.new.put("a", b"x"), -600, NO_CRASH, crashes=True),
    Case("is_exist before setup", lambda c: c.new.is_exist("a"), -600, NO_CRASH, crashes=True),
    Case("batch_is_exist before setup", lambda c: c.new.batch_is_exist(["a"]), [-600], NO_CRASH, crashes=True),
    Case("get_hostname before setup", lambda c: c.new.get_hostname(), "", NO_CRASH, crashes=True),
    Case("setup", lambda c: c.setup(c.s)),
    Case("health_check", lambda c: c.s.health_check()),
    Case("get_hostname has the host", lambda c: c.s.get_hostname().rpartition(":")[0]),
]

PLAIN = [
    Case("put new", lambda c: c.s.put("a", b"hello")),
    Case("put same key, same bytes", lambda c: c.s.put("a", b"hello")),
    Case("put same key, other bytes", lambda c: c.s.put("a", b"world!")),
    Case("get: the first value stays", lambda c: c.s.get("a")),
    Case("get missing", lambda c: c.s.get("nope")),
    Case("get_batch", lambda c: c.s.get_batch(["a", "nope"])),
    Case("get_batch of nothing", lambda c: c.s.get_batch([])),
    Case("get_buffer", lambda c: parts_of(c.s.get_buffer("a"))),
    Case("get_buffer's memory", lambda c: shape_of(memoryview(c.s.get_buffer("a")))),
    Case("get_buffer missing", lambda c: c.s.get_buffer("nope")),
    Case("batch_get_buffer", lambda c: [b and bytes(memoryview(b)) for b in c.s.batch_get_buffer(["a", "nope"])]),
    Case("batch_get_buffer of nothing", lambda c: c.s.batch_get_buffer([])),
    Case("get_size", lambda c: c.s.get_size("a")),
    Case("get_size missing", lambda c: c.s.get_size("nope")),
    Case("is_exist", lambda c: c.s.is_exist("a")),
    Case("is_exist missing", lambda c: c.s.is_exist("nope")),
    Case("batch_is_exist", lambda c: c.s.batch_is_exist(["a", "nope"])),
    Case("batch_is_exist of nothing", lambda c: c.s.batch_is_exist([])),
    Case("batch_is_exist with an empty key", lambda c: c.s.batch_is_exist(["a", ""])),
    Case("put empty value", lambda c: c.s.put("empty", b"")),
    Case("get of the empty value", lambda c: c.s.get("empty")),
    Case("put empty key", lambda c: c.s.put("", b"x")),
    Case("is_exist of the empty key", lambda c: c.s.is_exist("")),
    Case("get of the empty key", lambda c: c.s.get("")),
    Case("put_batch", lambda c: c.s.put_batch(["b1", "b2"], [b"1", b"22"])),
    Case("put_batch, all there", lambda c: c.s.put_batch(["b1", "b2"], [b"1", b"22"])),
    Case("put_batch, partly there", lambda c: c.s.put_batch(["b2", "b3"], [b"22", b"333"])),
    Case("put_batch, lengths differ", lambda c: c.s.put_batch(["c1", "c2"], [b"1"])),
    Case("put_batch of nothing", lambda c: c.s.put_batch([], [])),
    Case("put_batch with an empty value", lambda c: (c.s.put_batch(["e1", "e2"], [b"1", b""]), c.s.is_exist("e1"))),
    Case("put_parts", lambda c: (c.s.put_parts("parts", b"ab", b"cd", bytearray(b"ef")), c.s.get("parts"))),
    Case("put_parts of memoryviews", lambda c: c.s.put_parts("parts2", memoryview(b"ab"), memoryview(bytearray(b"x")))),
    Case("put_parts without parts", lambda c: c.s.put_parts("parts0")),
    Case("put_parts with an empty part", lambda c: (c.s.put_parts("parts3", b"", b"x"), c.s.get("parts3"))),
    Case("put str value", lambda c: c.s.put("strv", "text")),
    Case("put bytearray", lambda c: c.s.put("ba", bytearray(b"zz"))),
    Case("put of a memoryview with gaps", lambda c: c.s.put("nc", memoryview(b"abcdef")[::2])),
    Case("put int key", lambda c: c.s.put(5, b"x")),
    Case("put long key", lambda c: (c.s.put("k" * 5000, b"x"), c.s.get("k" * 5000), c.s.is_exist("k" * 4999))),
    Case("put unicode key", lambda c: (c.s.put("ключ/☃", b"x"), c.s.get("ключ/☃"))),
    Case("put with None for config", lambda c: c.s.put("noconf", b"x", None)),
]

UPSERTS = [
    Case("upsert new", lambda c: (c.s.upsert("u", b"1"), c.s.get("u"))),
    Case("upsert same size", lambda c: (c.s.upsert("u", b"2"), c.s.get("u"))),
    Case("upsert larger", lambda c: (c.s.upsert("u", b"3333"), c.s.get("u"))),
    Case("upsert_batch", lambda c: (c.s.upsert_batch(["u", "u2"], [b"x", b"y"]), c.s.get_batch(["u", "u2"]))),
    Case("upsert_parts", lambda c: (c.s.upsert_parts("u3", b"x", b"y"), c.s.get("u3"))),
    Case("upsert_from", lambda c: (c.s.upsert_from("u3", c.fill(b"new"), 3), c.s.get("u3"))),
    Case("batch_upsert_from", lambda c: (c.s.batch_upsert_from(["u3"], [c.fill(b"newer")], [5]), c.s.get("u3"))),
    Case("upsert empty value", lambda c: c.s.upsert("u", b"")),
    Case(
        "put with a soft pin", lambda c: c.s.put("soft", b"1", c.config(soft_pin_action=c.module.SoftPinAction.ENABLE))
    ),
    Case("a time without a soft pin", lambda c: c.s.upsert("soft", b"1", c.config(soft_pin_ttl_ms=1000))),
    Case(
        "a time and the end of a soft pin",
        lambda c: c.s.upsert(
            "soft", b"1", c.config(soft_pin_action=c.module.SoftPinAction.DISABLE, soft_pin_ttl_ms=1000)
        ),
    ),
    Case("replica_num 0", lambda c: c.s.put("norep", b"1", c.config(replica_num=0))),
]

POINTERS = [
    Case("put_from, not registered", lambda c: c.s.put_from("z0", c.fill(b"0123456789abcdef"), 16)),
    Case("get_into, not registered", lambda c: (c.s.get_into("a", c.other, 100), c.seen(5))),
    Case("register_buffer", lambda c: c.s.register_buffer(c.ptr, 4 * MIB)),
    Case("register_buffer again", lambda c: c.s.register_buffer(c.ptr, 4 * MIB)),
    Case("put_from", lambda c: c.s.put_from("z1", c.fill(b"\7" * MIB), MIB)),
    Case("put_from same key", lambda c: c.s.put_from("z1", c.ptr, MIB)),
    Case("put_from of no bytes", lambda c: (c.s.put_from("zz", c.ptr, 0), c.s.is_exist("zz"))),
    Case("get_into", lambda c: (c.wipe(), c.s.get_into("z1", c.other, MIB), c.seen(MIB) == b"\7" * MIB)[1:]),
    Case("get_into larger buffer", lambda c: c.s.get_into("z1", c.other, 2 * MIB)),
    Case("get_into smaller buffer", lambda c: c.s.get_into("z1", c.other, 100)),
    Case("get_into missing", lambda c: c.s.get_into("nope", c.other, MIB)),
    Case("batch_put_from", lambda c: c.s.batch_put_from(["m1", "m2"], [c.fill(b"m" * 30), c.ptr + 10], [10, 20])),
    Case("batch_put_from, one there", lambda c: c.s.batch_put_from(["m2", "m3"], [c.ptr, c.ptr + 10], [10, 20])),
    Case("batch_put_from, lengths differ", lambda c: c.s.batch_put_from(["m4", "m5"], [c.ptr], [10])),
    Case("batch_put_from, one of no bytes", lambda c: c.s.batch_put_from(["m6", "m7"], [c.ptr, c.ptr], [0, 5])),
    Case("batch_put_from, doubled key", lambda c: c.s.batch_put_from(["d1", "d1"], [c.ptr, c.ptr], [5, 5])),
    Case("batch_put_from of nothing", lambda c: c.s.batch_put_from([], [], [])),
    Case(
        "batch_get_into",
        lambda c: (
            c.wipe(),
            c.s.batch_get_into(["m1", "nope", "m2"], [c.other, c.other + 100, c.other + 200], [10, 10, 20]),
            c.seen(11),
            c.seen(21, 200),
        )[1:],
    ),
    Case("batch_get_into, small buffer", lambda c: c.s.batch_get_into(["m1", "m2"], [c.other, c.other + 200], [5, 20])),
    Case("batch_get_into, lengths differ", lambda c: c.s.batch_get_into(["m1", "m2"], [c.other], [5])),
    Case("batch_get_into of nothing", lambda c: c.s.batch_get_into([], [], [])),
    Case("batch_get_into, doubled key", lambda c: c.s.batch_get_into(["m1", "m1"], [c.other, c.other + 50], [10, 10])),
    Case(
        "batch_put_from_multi_buffers",
        lambda c: c.s.batch_put_from_multi_buffers(
            ["p1", "p2"], [[c.fill(bytes(range(200))), c.ptr + 100], [c.fill(b"q" * 70, 200)]], [[50, 60], [70]]
        ),
    ),
    Case("what it put", lambda c: (c.s.get_size("p1"), c.s.get("p1") == bytes([*range(50), *range(100, 160)]))),
    Case("the same again", lambda c: c.s.batch_put_from_multi_buffers(["p1"], [[c.ptr]], [[50]])),
    Case(
        "batch_get_into_multi_buffers",
        lambda c: (
            c.wipe(),
            c.s.batch_get_into_multi_buffers(
                ["p1", "p2", "nope"],
                [[c.other, c.other + 100], [c.other + 200], [c.other + 300]],
                [[50, 60], [70], [10]],
            ),
            c.seen(51) == bytes([*range(50), 0]),
            c.seen(61, 100) == bytes([*range(100, 160), 0]),
        )[1:],
    ),
    Case("its sum is smaller", lambda c: c.s.batch_get_into_multi_buffers(["p1"], [[c.other]], [[50]])),
    Case(
        "its sum is larger",
        lambda c: c.s.batch_get_into_multi_buffers(["p1"], [[c.other, c.other + 1000]], [[50, 600]]),
    ),
    Case(
        "multi_buffers, lengths differ",
        lambda c: (
            c.s.batch_put_from_multi_buffers(["p3", "p4"], [[c.ptr]], [[5]]),
            c.s.batch_get_into_multi_buffers(["p1", "p2"], [[c.other]], [[5]]),
        ),
    ),
    Case(
        "put_from_with_metadata",
        lambda c: (c.s.put_from_with_metadata("wm", c.fill(b"DATA"), c.fill(b"meta", 64), 4, 4), c.s.get("wm")),
    ),
]

RANGES = [
    Case(
        "get_into_ranges",
        lambda c: (
            c.wipe(),
            c.s.get_into_ranges([c.other], [["p1"]], [[[0, 10]]], [[[0, 20]]], [[[5, 6]]]),
            c.seen(17),
        )[1:],
    ),
    Case(
        "get_into_ranges past the object's end",
        lambda c: c.s.get_into_ranges([c.other], [["p1"]], [[[0]]], [[[108]]], [[[5]]]),
    ),
    Case(
        "get_into_ranges, one missing",
        lambda c: c.s.get_into_ranges([c.other], [["nope", "p1"]], [[[0], [8]]], [[[0], [0]]], [[[4], [4]]]),
    ),
    Case(
        "get_into_ranges, lengths differ",
        lambda c: c.s.get_into_ranges([c.other], [["p1", "p2"]], [[[0], []]], [[[0, 1], []]], [[[], []]]),
    ),
    Case("get session start", lambda c: c.s.batch_get_session_start(["p1", "nope"])),
    Case(
        "get session ranges",
        lambda c: (
            c.wipe(),
            c.s.batch_get_into_multi_buffer_ranges(["p1"], [[c.other, c.other + 50]], [[10, 20]], [[20, 60]]),
            c.seen(11),
            c.seen(21, 50),
        )[1:],
    ),
    Case(
        "get session range past the object's end",
        lambda c: c.s.batch_get_into_multi_buffer_ranges(["p1"], [[c.other]], [[30]], [[100]]),
    ),
    Case(
        "get session range of a key without one",
        lambda c: c.s.batch_get_into_multi_buffer_ranges(["p2"], [[c.other]], [[30]], [[0]]),
    ),
    Case("get session end", lambda c: c.s.batch_get_session_end(["p1"])),
    Case("get session end again", lambda c: c.s.batch_get_session_end(["p1"])),
    Case("put session start", lambda c: c.s.batch_put_session_start(["s1"], [100])),
    Case("put session start again", lambda c: c.s.batch_put_session_start(["s1"], [100])),
    Case("put session start of a key that is there", lambda c: c.s.batch_put_session_start(["p1"], [100])),
    Case("put session start, lengths differ", lambda c: c.s.batch_put_session_start(["s8", "s9"], [100])),
    Case("put session start of no bytes", lambda c: c.s.batch_put_session_start(["s8"], [0])),
    Case("is_exist within the put session", lambda c: c.s.is_exist("s1")),
    Case(
        "put session ranges",
        lambda c: c.s.batch_put_from_multi_buffer_ranges(
            ["s1"], [[c.fill(b"s" * 100), c.ptr + 50]], [[50, 50]], [[0, 50]]
        ),
    ),
    Case(
        "put session range past its end",
        lambda c: c.s.batch_put_from_multi_buffer_ranges(["s1"], [[c.ptr]], [[50]], [[80]]),
    ),
    Case(
        "put session range without one",
        lambda c: c.s.batch_put_from_multi_buffer_ranges(["s7"], [[c.ptr]], [[50]], [[0]]),
    ),
    Case("put session end", lambda c: (c.s.batch_put_session_end(["s1"]), c.s.get("s1") == b"s" * 100)),
    Case("put session end again", lambda c: c.s.batch_put_session_end(["s1"])),
    Case(
        "put session revoked",
        lambda c: (c.s.batch_put_session_start(["s2"], [100]), c.s.batch_put_session_revoke(["s2"]), c.s.get("s2")),
    ),
    Case("put session revoked again", lambda c: c.s.batch_put_session_revoke(["s2"])),
    Case("unregister_buffer", lambda c: c.s.unregister_buffer(c.ptr)),
    Case("unregister_buffer again", lambda c: c.s.unregister_buffer(c.ptr)),
]

REMOVALS = [
    Case("remove missing", lambda c: c.s.remove("nope")),
    Case("remove of what was just put", lambda c: (c.s.put("r", b"1"), c.s.remove("r"))),
    Case(
        "remove after get", lambda c: (c.s.put("r2", b"1"), c.s.get("r2"), c.s.remove("r2")), (0, b"1", 0), NOT_LEASED
    ),
    Case(
        "remove after is_exist",
        lambda c: (c.s.put("r3", b"1"), c.s.is_exist("r3"), c.s.remove("r3")),
        (0, 1, 0),
        NOT_LEASED,
    ),
    Case("remove by force", lambda c: (c.s.put("r4", b"1"), c.s.get("r4"), c.s.remove("r4", True))),
    Case(
        "remove of what is pinned hard",
        lambda c: (c.s.put("hp", b"1", c.config(with_hard_pin=True)), c.s.remove("hp"), c.s.remove("hp", True)),
    ),
    Case("batch_remove", lambda c: (c.s.put("r5", b"1"), c.s.batch_remove(["r5", "nope"]))),
    Case("batch_remove by force", lambda c: (c.s.put("r5", b"1"), c.s.batch_remove(["r5", "nope"], True))),
    Case("batch_remove of nothing", lambda c: c.s.batch_remove([])),
    Case(
        "remove_by_regex",
        lambda c: (c.s.put_batch(["re1", "re2", "xre3"], [b"1", b"2", b"3"]), c.s.remove_by_regex("^re[0-9]")),
    ),
    Case("remove_by_regex, bad", lambda c: c.s.remove_by_regex("(")),
    Case("remove_by_regex in the middle", lambda c: (c.s.put("one-two-three", b"1"), c.s.remove_by_regex("-two-"))),
    Case("remove_all by force, then nothing is left", lambda c: (c.s.remove_all(True) > 0, c.s.remove_all(True))),
    Case(
        "remove_all of what is pinned hard",
        lambda c: (c.s.put("hp", b"1", c.config(with_hard_pin=True)), c.s.remove_all(), c.s.remove_all(True)),
        (0, 0, 1),
        "a hard pin also keeps an object from the removal of everything, unless that is forced",
    ),
]

ROOM = [
    Case("two replicas with one node", lambda c: (c.s.put("rep", b"x", c.config(replica_num=2)), c.s.get("rep"))),
    Case("an unknown preferred segment", lambda c: c.s.put("pref", b"x", c.config(preferred_segment="nobody:1"))),
    Case("preferred_segments", lambda c: c.s.put("prefs", b"x", c.config(preferred_segments=["nobody:1", "other:2"]))),
    Case("a value larger than local_buffer_size", lambda c: c.s.put("big", bytes(BUFFER_BYTES + 1))),
    Case(
        "put when everything is pinned hard",
        lambda c: (
            {c.s.put(f"h{i}", bytes(8 * MIB), c.config(with_hard_pin=True)) for i in range(33)},
            [c.s.put(f"after{i}", bytes(8 * MIB), c.config(with_hard_pin=True)) for i in range(3)][-1],
        ),
    ),
    Case("then remove_all by force", lambda c: c.s.remove_all(True) > 20),
    Case(
        "get_replica_desc",
        lambda c: (
            c.s.put("desc", bytes(100)),
            [
                (
                    d.status.name,
                    d.is_memory_replica(),
                    d.is_disk_replica(),
                    d.get_memory_descriptor().buffer_descriptor.size,
                    bool(d.get_memory_descriptor().buffer_descriptor.transport_endpoint),
                )
                for d in c.s.get_replica_desc("desc")
            ],
        ),
    ),
    Case("get_replica_desc missing", lambda c: c.s.get_replica_desc("nope")),
    Case(
        "batch_get_replica_desc",
        lambda c: {key: len(found) for key, found in c.s.batch_get_replica_desc(["desc", "nope"]).items()},
    ),
    Case("batch_replica_clear missing", lambda c: c.s.batch_replica_clear(["nope"])),
    Case("batch_replica_clear of nothing", lambda c: c.s.batch_replica_clear([])),
    Case("create_copy_task to nowhere", lambda c: c.s.create_copy_task("desc", ["nobody:1"])),
    Case("create_move_task to nowhere", lambda c: c.s.create_move_task("desc", "nobody:1", "nobody:2")),
    Case("query_task unknown", lambda c: c.s.query_task((1, 2))),
    Case("get_offload_rpc_read_count", lambda c: c.s.get_offload_rpc_read_count()),
]

ENDS = [
    Case("setup with a dict", lambda c: c.setup_dict()),
    Case("a size with a space", lambda c: c.setup_dict(local_buffer_size="16 MB")),
    Case("a size in percent", lambda c: c.setup_dict(global_segment_size="50%")),
    Case("a dict without the master's address", lambda c: c.setup_dict(master_server_addr=None)),
    Case("a dict without a host", lambda c: c.setup_dict(local_hostname=None)),
    Case(
        "LMCache's name for the master's address",
        lambda c: c.setup_dict(master_server_addr=None, master_server_address=c.address),
        0,
        "LMCache says master_server_address: it means the same; the real module waits 90 s for a master elsewhere",
        crashes=True,
    ),
    Case("setup with an unknown keyword", lambda c: c.module.MooncakeDistributedStore().setup({}, colour="red")),
    Case("setup without anything", lambda c: c.module.MooncakeDistributedStore().setup()),
    Case("protocol rdma without hardware", lambda c: c.setup_dict(protocol="rdma", global_segment_size=0)),
    Case("close", lambda c: (c.s.put("kept", b"1"), c.s.close())),
    Case("close again", lambda c: c.s.close()),
    Case("get after close", lambda c: c.s.get("kept")),
    Case("health_check after close", lambda c: c.s.health_check()),
    Case("put after close", lambda c: c.s.put("x", b"x"), -600, NO_CRASH, crashes=True),
    Case("is_exist after close", lambda c: c.s.is_exist("x"), -600, NO_CRASH, crashes=True),
    Case("get_hostname after close", lambda c: c.s.get_hostname(), "", NO_CRASH, crashes=True),
    Case(
        "the object after its writer closed and came back",
        lambda c: (c.setup(c.s), c.s.get("kept")),
        (0, b"1"),
        OUTLIVES,
    ),
    Case("close at the end", lambda c: c.s.close()),
]

CASES = [*BEFORE, *PLAIN, *UPSERTS, *POINTERS, *RANGES, *REMOVALS, *ROOM, *ENDS]


def answer_to(case: Case, scene: Scene) -> str:
    """As text, so that answers of two processes can be compared; of an error only its kind."""
    try:
        return repr(case.ask(scene))
    except Exception as error:  # noqa: BLE001 - the kind of the error is the answer.
        return f"raises {type(error).__name__}"


def answers(module: Any, address: str, crash_too: bool) -> dict[str, str]:
    scene = Scene(module, address)
    return {case.name: answer_to(case, scene) for case in CASES if crash_too or not case.crashes}


def differences(given: dict[str, str], real: dict[str, str]) -> list[str]:
    """Where holdfast's answers are not what the table wants."""
    wanted = {case.name: real.get(case.name) if case.ours == UNSET else repr(case.ours) for case in CASES}
    return [
        f"{name}: {given.get(name)} where {answer} is wanted"
        for name, answer in wanted.items()
        if given.get(name) != answer
    ]


def main() -> int:
    module = importlib.import_module("mooncake.store")
    found = answers(module, sys.argv[1], crash_too="--crash-too" in sys.argv)
    print("ANSWERS " + json.dumps(found), flush=True)
    # The real module's destructors may wait for a master that is gone.
    os._exit(0)


if __name__ == "__main__":
    sys.exit(main())
