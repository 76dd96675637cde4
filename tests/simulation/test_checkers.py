"""Parts of the simulator that a planted bug would not show to be wrong by itself."""

from __future__ import annotations

import struct

import msgspec
from msgspec.structs import replace

from holdfast.client.operations.transfer import RemoteWrite
from holdfast.core.catalogue.catalogue import DISK, HARD_PIN, MEMORY, ReplicaAt
from holdfast.core.state.grants import Grant
from holdfast.core.state.packed_numbers import pack_column
from holdfast.core.state.state import State
from holdfast.core.state.tenants import Tenant
from holdfast.ids import GrantId, SegmentName, namespace_of
from holdfast.messages import records as r
from holdfast.messages.requests import CommitPuts
from holdfast.messages.rows import PutRow
from holdfast.messages.shapes import Record
from holdfast.replication.batches import Position, encode_batch, encode_record
from holdfast.simulation.checks.clock_checks import FAR_SECONDS, SPREAD_SECONDS, instants_in, may_hold_an_instant
from holdfast.simulation.checks.log_checks import LogChecks
from holdfast.simulation.checks.puts.successor_checks import SuccessorChecks
from holdfast.simulation.checks.restore_checks import RestoreChecks, inside, name_of
from holdfast.simulation.checks.tenants.holding_checks import owned_objects
from holdfast.simulation.checks.tenants.quota_checks import QuotaChecks, fresh_keys
from holdfast.simulation.kernel.scheduler import MS
from holdfast.simulation.runs.run import within
from holdfast.simulation.scripts.draw import draw, draw_operations, draw_shape
from holdfast.simulation.scripts.history import ClientCall
from holdfast.simulation.scripts.scenes import FIRST_NUMBER
from holdfast.simulation.scripts.script import FAULT_MS, Fault, Operation, Script, ScriptShape
from holdfast.simulation.world.torn_writes import halves_of
from holdfast.simulation.world.world import World
from tests.core.tenants_world import TenantsWorld

FAR_MS = FAR_SECONDS * 1000
LAST_MS = FAR_MS + SPREAD_SECONDS * 1000


def test_an_instant_is_found_wherever_it_lies() -> None:
    """I16: as a number of a message, in a column, in a packed column, and as seconds."""
    for instant in (FAR_MS, FAR_MS + 123_456_789, LAST_MS):
        for carried in (
            msgspec.msgpack.encode([b"before", {"lease": instant}, "behind"]),
            b"x" + struct.pack("<3q", 1, instant, 2),
            pack_column([instant, instant + 40]),
            msgspec.msgpack.encode(("at", instant / 1000)),
        ):
            assert may_hold_an_instant(carried)
            assert any(abs(found - instant) <= 1 for found in instants_in(carried)), carried


def test_durations_ids_and_sizes_are_no_instants() -> None:
    plain = msgspec.msgpack.encode([0, 10_000, 5 << 40 | 77, 7 << 40 | 3, 1 << 46, 0.25, "key/1", 31_536_000_000])
    assert not list(instants_in(plain))


def test_a_torn_copy_is_the_whole_copy_in_two_steps() -> None:
    values = [b"abcdefg", b"0123456789"]
    whole = RemoteWrite(None, None, None, None, values, [0, 64], False, 1.0)  # type: ignore[arg-type]
    halves = halves_of(whole)
    assert halves is not None
    written = bytearray(74)
    for half in halves:
        assert isinstance(half, RemoteWrite)
        for offset, value in zip(half.offsets, half.values, strict=True):
            written[offset : offset + len(value)] = value
    assert bytes(written[:7]) == values[0]
    assert bytes(written[64:]) == values[1]
    assert halves_of(lambda: None) is None


def test_a_scene_is_beside_the_rest_of_the_script() -> None:
    """Its numbers are its own, so that sizes still tell whose a value is; and it begins while faults do."""
    scenes = 0
    for seed in range(200):
        script = draw(seed)
        drawn = {operation.number for operation in draw_operations(seed, draw_shape(seed))}
        scene = [operation for operation in script.operations if operation.number not in drawn]
        scenes += bool(scene)
        assert drawn <= {operation.number for operation in script.operations}
        assert max(drawn) < FIRST_NUMBER
        assert len({operation.number for operation in script.operations}) == len(script.operations)
        assert all(500 <= operation.at_ms <= FAULT_MS for operation in scene)
    assert scenes > 10


def mounted(handle: int, boot: int, kind: int) -> Record:
    return r.SegmentMounted(handle, SegmentName("node-0", boot, 0), 1 << 20, "node-0:7071", "", "node-0", kind)


def found_in(*records: Record) -> list[str]:
    """The promises that a log of these records breaks."""
    broken: list[str] = []

    def report(promise: str, what: str, subject: str) -> None:
        broken.append(promise)

    batch, _ = encode_batch(Position(), [encode_record(record) for record in records])
    LogChecks({}, RestoreChecks(report, {}, lambda: 0), report).appended(1, 1, 1, batch)
    return broken


def test_a_node_lends_one_memory_and_one_disk_at_a_time() -> None:
    """I14: what the node had before is unmounted first; of disks it is enough that the other one is away."""
    begun = r.LogStarted(7, "simulated", bytes(32))
    for kind in (MEMORY, DISK):
        first, second = mounted(1, 11, kind), mounted(2, 12, kind)
        assert found_in(begun, first, second) == ["I14"]
        assert found_in(begun, first, r.SegmentUnmounted(1), second) == []
    assert found_in(begun, mounted(1, 11, DISK), r.DiskLeft(1), mounted(2, 12, DISK)) == []
    assert found_in(begun, mounted(1, 11, DISK), r.DiskLeft(1), mounted(1, 11, DISK), mounted(2, 12, DISK)) == ["I14"]
    assert found_in(begun, mounted(1, 11, MEMORY), mounted(2, 12, DISK)) == []


def test_a_seed_without_tenants_plays_what_it_would_play_if_there_were_none() -> None:
    """All about tenants is drawn from streams of its own; where there are some, each tenant has a client and quotas."""
    shared = 0
    for seed in range(200):
        script = draw(seed)
        if not script.shape.tenants:
            assert script == draw(seed, draw_shape(seed))
            continue
        shared += 1
        names = {name for name in script.shape.tenants if name}
        assert 2 <= len(names) <= 3
        assert len(script.shape.tenants) == script.shape.clients
        assert names <= {fault.one for fault in script.faults if fault.kind == "quotas"}
        assert len({operation.number for operation in script.operations}) == len(script.operations)
    assert 20 < shared < 50


def test_a_tenants_key_has_a_name_for_checkers_and_another_inside_masters() -> None:
    state = State()
    state.tenants.put(Tenant(1, "red"))
    for name in ("key/1", "red:key/1"):
        assert name_of(state, inside(state, name)) == name
    assert inside(state, "red:key/1") == namespace_of(1) + "key/1"
    assert inside(state, "key/1") == "key/1"


def test_a_commit_asked_again_promises_nothing_of_objects_that_it_stored_before() -> None:
    """They may have been evicted since; a key that another object kept from it then may be free now."""
    state, grant = State(), GrantId(5, 7)
    state.grants[grant] = Grant(grant, 4_096, (), commits={0: 11, 128: 12})
    commit = CommitPuts(grant, ["a", "b", "c"], PutRow.pack_rows([(0, 64, 0), (64, 64, 0), (128, 64, 0)]))
    assert fresh_keys(state, commit) == ["b"]
    assert fresh_keys(State(), commit) == []


def test_a_master_that_is_started_again_is_not_what_it_was_before() -> None:
    """In the moment of its start an operator asked the primary that it had been (seed 13002238)."""

    def look(world: World) -> None:
        world.play(1_000)
        machine = world.masters["master-0"]
        assert machine.alive is not None
        world.kill("master-0")
        world.start("master-0")
        assert machine.alive is None
        world.scheduler.run_until(2_000 * MS)
        assert machine.alive is not None

    within(msgspec.structs.replace(draw(7), operations=[], faults=[]), look)


def may_be_lost(*faults: Fault, durability: str = "standby", named: str = "master-1") -> bool:
    """A put that was acknowledged at second 5, in an epoch that another followed at second 7."""
    checks = SuccessorChecks()
    checks.appended(r.SuccessorNamed("master-1", 5), 2_000)
    checks.appended(r.SuccessorNamed(named, 5), 4_000)
    for fault in faults:
        checks.struck(fault, fault.at_ms)
    checks.appended(r.EpochStarted(2), 7_000)
    put = Operation(4_990, 0, "put", 1, ("k",), 1_000, durability=durability)
    return checks.may_be_lost(ClientCall(put, 4_990 * MS, 5_000 * MS, "done", True))


def test_a_put_on_a_successors_word_may_be_lost_with_that_successor_and_with_nobody_else() -> None:
    """I1: neither the death of others excuses it, nor trouble between the successor and others than the store."""
    assert may_be_lost(Fault(6_000, "kill_master", 500, "master-1"))
    assert may_be_lost(Fault(6_000, "pause_master", 5_000, "master-1"))
    assert may_be_lost(Fault(6_000, "refuse", 500, "master-1", "client-0"))
    assert may_be_lost(Fault(6_000, "cut", 500, "master-1", "store"))
    assert not may_be_lost()
    assert not may_be_lost(Fault(6_000, "kill_master", 500, "master-0"), Fault(6_000, "kill_master", 500, "master-2"))
    assert not may_be_lost(Fault(6_000, "cut", 500, "master-1", "node-0"))
    assert not may_be_lost(Fault(6_000, "slow_threads", 500, "master-1"))


def test_what_befell_the_successor_before_or_afterwards_excuses_nothing() -> None:
    assert not may_be_lost(Fault(3_000, "kill_master", 500, "master-1"))
    assert not may_be_lost(Fault(7_500, "kill_master", 500, "master-1"))


def test_where_the_log_names_nobody_nothing_may_be_lost_nor_anything_that_waits_for_the_log() -> None:
    killed = Fault(6_000, "kill_master", 500, "master-1")
    assert not may_be_lost(killed, named="")
    assert not may_be_lost(killed, durability="durable")


def test_a_node_that_starts_again_does_not_live_on_in_its_old_memory() -> None:
    """Until its first step it has none. It seemed to have the old one, into which a client put in that moment."""

    def restarted(world: World) -> None:
        world.play(2_000)
        node = next(iter(world.nodes.values()))
        assert node.alive is not None
        world.kill(node.name)
        assert node.alive is None
        world.start(node.name)
        assert node.alive is None
        world.scheduler.run_until(3_000 * MS)
        assert node.alive is not None

    within(Script(0, ScriptShape(), (), ()), restarted)


def test_what_is_on_disk_alone_helps_a_tenant_with_too_many_objects_and_not_one_with_too_many_bytes() -> None:
    """Seed 21004774: a limit of objects that was not exceeded made the checker ask for what no eviction can do."""
    world = TenantsWorld()
    world.node("n1", size=1 << 20, boot=10)
    world.define(1, max_objects=5)
    assert world.store(1, "pinned", hard_pin=True) is None
    assert world.store(1, "on disk") is None
    catalogue = world.state.catalogue
    [slot] = [slot for slot in catalogue.live().tolist() if not catalogue.flags_at[slot] & HARD_PIN]
    catalogue.set_replicas(slot, (ReplicaAt(catalogue.segment_at[slot], catalogue.offset_at[slot], DISK),))
    checks = QuotaChecks("master", world.engine, lambda *_: None)
    assert not checks._has_evictable(owned_objects(world.state), 1, world.now)
    world.state.tenants.put(replace(world.state.tenants.of(1), max_objects=1))
    assert checks._has_evictable(owned_objects(world.state), 1, world.now)
