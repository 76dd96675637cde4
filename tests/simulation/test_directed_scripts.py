"""Bugs for which much must come together: scripts written by hand bring it about at once, where seeds need scenes."""

from __future__ import annotations

from collections.abc import Callable
from unittest.mock import patch

import pytest

from holdfast.core import decide
from holdfast.core.catalogue.catalogue import Catalogue
from holdfast.core.copies.disks import mount_disk
from holdfast.core.primary.decision import Decision
from holdfast.core.primary.primary import Primary
from holdfast.errors import MemoryVoid
from holdfast.instant import Instant
from holdfast.master.engine.engine import Engine
from holdfast.master.histories.snapshot_upkeep import Snapshots
from holdfast.master.server import RpcServer
from holdfast.messages.of_nodes import MountDisk
from holdfast.node.disk.tier import DiskTier
from holdfast.simulation.checks.restore_checks import RestoreChecks
from holdfast.simulation.runs.run import run
from holdfast.simulation.scripts.script import PRIMARY, Fault, Operation, Script, ScriptShape
from tests.simulation.planted import PLANTED, Planted
from tests.simulation.planted_restores import SNAPSHOT_BETWEEN_PIECES
from tests.simulation.planted_sessions import BEGIN_NUMBERS_AGAIN

SEEDS = range(4)


def a_wrong_guess(seed: int, leader: int) -> Script:
    """The primary is cut off from the store, and refused to the standby and to a client, which removes an object at the
    new one; another client still asks the old one, which may answer for a while."""
    asks = tuple(Operation(3_020 + 40 * i, 0, "exists", 10 + i, ("key/0",)) for i in range(28))
    put = Operation(1_000, 0, "put", 1, ("key/0",), 1_001)
    takes = Operation(3_150, 1, "force_remove", 40, ("key/0",))
    refuse = Fault(3_000, "refuse", 2_500, f"master-{leader}", "client-1")
    return Script(seed, ScriptShape(2, 1, 2), tuple(sorted((put, takes, *asks), key=lambda one: one.at_ms)), (refuse,))


def a_writer_that_comes_late(seed: int, leader: int) -> Script:
    """A client on another machine is stopped between its grant and its copy, until the range is somebody else's."""
    late = Operation(1_000, 2, "put", 1, ("key/0",), 262_145)
    puts = [Operation(6_500 + 100 * i, 0, "put", 10 + i, (f"key/{i + 1}",), 262_154 + i) for i in range(6)]
    gets = [Operation(12_000 + 50 * i, 1, "get", 30 + i, (f"key/{i + 1}",)) for i in range(6)]
    faults = (
        Fault(900, "slow_threads", 2_000, "client-2", share=0.1),
        Fault(1_100, "pause_client", 9_000, "client-2"),
    )
    return Script(seed, ScriptShape(2, 1, 3, segment_bytes=1 << 20), (late, *puts, *gets), faults)


def a_snapshot_between_pieces(seed: int, leader: int) -> Script:
    """The operator restores over a history that was begun in the emptied store. The pieces of the catalogue come
    slowly; meanwhile the standby is asked for a snapshot, and it is killed and starts from that one."""
    puts = tuple(Operation(1_000 + 100 * i, i % 2, "put", 1 + i, (f"key/{i}",), 1_001 + i) for i in range(24))
    faults = (
        Fault(4_200, "take_snapshots", 0),
        Fault(4_800, "take_snapshots", 0),
        Fault(5_500, "wipe_store", 500),
        Fault(9_000, "restore", 100, other="kept"),
        Fault(9_250, "late_store", 900, share=0.05),
        Fault(9_600 + 40 * seed, "take_snapshots", 0),
        Fault(10_200, "kill_master", 300, f"master-{1 - leader}"),
    )
    return Script(seed, ScriptShape(2, 1, 2), puts, faults)


def commands_of_two_masters(seed: int, leader: int) -> Script:
    """A node has handled a command when the primary is killed. Its successor has commands for that node at once, before
    the node's first keepalive there, which still reports the number that it handled under the primary before."""
    handled = Fault(2_000, "command", 0, "node-0")
    kill = Fault(3_000, "kill_master", 6_000, PRIMARY)
    at_once = (Fault(3_100 + 50 * i, "command", 0, "node-0") for i in range(40))
    return Script(seed, ScriptShape(2, 1, 1), (), (handled, kill, *at_once))


DIRECTED = (
    (PLANTED["take away right after a guess"], a_wrong_guess),
    (PLANTED["write over TCP after clean"], a_writer_that_comes_late),
    (BEGIN_NUMBERS_AGAIN, commands_of_two_masters),
    pytest.param(SNAPSHOT_BETWEEN_PIECES, a_snapshot_between_pieces, marks=pytest.mark.thorough),
)


@pytest.mark.parametrize(("bug", "script"), DIRECTED)
def test_a_script_by_hand_finds_at_once_what_is_rare(bug: Planted, script: Callable[[int, int], Script]) -> None:
    """I2, I6, I7, I13: found with the bug, and kept without it."""
    scripts = [script(seed, leader) for seed in SEEDS for leader in (0, 1)]
    for one in scripts:
        found = run(one)
        assert found.violation is None, found.violation
    with bug.plant():
        broken = [run(one).violation for one in scripts]
    assert {violation.promise for violation in broken if violation is not None} & {*bug.promises}


def every_snapshot_is_damaged(standby: str) -> Script:
    """When the log was trimmed, the snapshots of both masters are damaged; then the standby is killed, and has to begin
    with nothing beside a log that reaches back to no snapshot."""
    puts = (Operation(1_000 + 100 * i, i % 3, "upsert", 1 + i, (f"key/{i % 9}",), 1_001 + i) for i in range(100))
    spoiled = (Fault(16_000, "spoil_snapshot", 0, master, share=1) for master in ("master-0", "master-1"))
    kill = Fault(16_100, "kill_master", 500, standby)
    return Script(0, ScriptShape(nodes=1), tuple(puts), (*spoiled, kill))


def test_a_standby_that_finds_no_sound_snapshot_has_the_primary_write_one() -> None:
    """liveness: it is a standby again, and does not wait until the log has grown."""

    async def ask_nobody(snapshots: Snapshots, address: str) -> None:
        pass

    # One of the two is the standby. A primary that is killed instead leaves its successor a reason to write one.
    scripts = [every_snapshot_is_damaged(f"master-{number}") for number in (0, 1)]
    with patch.object(Snapshots, "ask_for_one", ask_nobody):
        broken = [run(script).violation for script in scripts]
    assert {violation.promise for violation in broken if violation is not None} == {"liveness"}
    for script in scripts:
        found = run(script)
        assert found.violation is None, found.violation


def pins_in_a_full_memory(seed: int) -> Script:
    """Objects are pinned hard after they were put, and some unpinned; the primary is killed, and when its leases have
    ended puts come for which the oldest objects must go."""
    puts = [Operation(1_000 + 20 * i, i % 2, "put", 1 + i, (f"key/{i}",), 40_001 + i) for i in range(20)]
    pins = [Operation(1_600 + 10 * i, 0, "pin", 100 + i, (f"key/{i}",), pin="hard") for i in range(6)]
    unpins = [Operation(2_000 + 10 * i, 1, "unpin", 110 + i, (f"key/{i}",)) for i in range(2)]
    later = [Operation(16_000 + 50 * i, i % 2, "put", 200 + i, (f"later/{i}",), 40_200 + i) for i in range(40)]
    kill = Fault(2_200, "kill_master", 500, PRIMARY)
    return Script(seed, ScriptShape(2, 1, 2, segment_bytes=1 << 20), (*puts, *pins, *unpins, *later), (kill,))


def test_a_pin_that_a_later_primary_does_not_know_is_found() -> None:
    """I8: of an object that was pinned after its put."""
    for seed in SEEDS:
        found = run(pins_in_a_full_memory(seed)).violation
        assert found is None, found
        with patch.object(Catalogue, "set_pins", lambda *given: None):
            broken = run(pins_in_a_full_memory(seed)).violation
        assert broken is not None
        assert broken.promise == "I8"


A_STORE_AWAY_WHILE_A_GRANT_ENDS = Script(
    seed=0,
    shape=ScriptShape(masters=1, nodes=1, clients=2),
    operations=(Operation(1_000, 1, "put", 1, ("key/0",), 262_145),),
    faults=(
        Fault(900, "slow_threads", 2_000, "client-1", share=0.1),
        Fault(1_060, "kill_client", 300, "client-1"),
        Fault(4_980, "store_outage", 1_400),
    ),
)
"""The node is to be told to clean a dead client's grant, once the record is durable; meanwhile the term runs out by the
primary's own clock, and is renewed when the store is back. By hand, after what seeds 160, 242 and 400061 had met."""


def test_nodes_are_told_what_was_decided_before_a_term_ran_out_that_was_then_renewed() -> None:
    """I11: letting clients go ends nothing but their connections."""
    let_go = RpcServer._part_from_clients

    def end_all_that_waits(server: RpcServer, engine: Engine, now: Instant) -> None:
        if now >= engine.shell.clients_wait_until() and not server._has_parted:
            engine.refuse_parked(server.not_leading())
        let_go(server, engine, now)

    with patch.object(RpcServer, "_part_from_clients", end_all_that_waits):
        broken = run(A_STORE_AWAY_WHILE_A_GRANT_ENDS).violation
    assert broken is not None
    assert broken.promise == "I11"
    found = run(A_STORE_AWAY_WHILE_A_GRANT_ENDS).violation
    assert found is None, found


def a_lost_store_and_files(*faults: Fault) -> Script:
    """Objects are on a node's disk alone, because it was killed; snapshots name them there, and the store is lost."""
    puts = tuple(Operation(1_500 + 300 * i, i % 2, "put", 1 + i, (f"key/{i}",), 262_145 + i) for i in range(8))
    before = (
        Fault(5_000, "kill_node", 300, "node-0"),
        Fault(7_000, "take_snapshots", 0),
        Fault(7_800, "take_snapshots", 0),
    )
    return Script(0, ScriptShape(2, 1, 2, segment_bytes=1 << 20, disk_bytes=8 << 20), puts, (*before, *faults))


A_RESTORE_OVER_AN_EMPTY_HISTORY = a_lost_store_and_files(
    Fault(8_500, "wipe_store", 500), Fault(13_000, "restore", 3_000, other="kept")
)
"""A history begins empty, so the node empties its disk under it; then the one before is restored. By hand, after what
seed 2003170 had met."""
A_RESTORE_AT_ONCE = a_lost_store_and_files(Fault(8_500, "wipe_store", 3_000, other="newest"))


def test_files_of_a_disk_that_another_history_had_emptied_are_a_miss() -> None:
    """I10: the restored catalogue names them, and they are away until the disk is given up."""
    with patch.object(RestoreChecks, "is_lost_with_its_disk", lambda *given: False):
        met = run(A_RESTORE_OVER_AN_EMPTY_HISTORY).violation
    assert met is not None
    assert "in the log, and was read as None" in met.what
    found = run(A_RESTORE_OVER_AN_EMPTY_HISTORY).violation
    assert found is None, found


def test_a_restored_history_that_empties_the_disk_that_it_names_is_found() -> None:
    """I10: the excuse is for disks that were emptied before."""

    def mount_no_older_one(primary: Primary, request: MountDisk, client: int, now: Instant) -> Decision:
        if request.log_id not in (0, primary.state.log_id):
            raise MemoryVoid("the files on this disk are of another history; empty it and mount it again")
        return mount_disk(primary, request, client, now)

    with patch.dict(decide._DECIDE, {MountDisk: mount_no_older_one}):
        broken = run(A_RESTORE_AT_ONCE).violation
    assert broken is not None
    assert broken.promise == "I10"
    found = run(A_RESTORE_AT_ONCE).violation
    assert found is None, found


def test_a_disk_of_a_restored_history_that_nobody_compares_is_found() -> None:
    """I11: it would stay unverified for ever."""
    with patch.object(DiskTier, "begin_verification", lambda *given: None):
        broken = run(A_RESTORE_AT_ONCE).violation
    assert broken is not None
    assert broken.promise == "I11"
    assert "not settled and verified" in broken.what


def test_a_disk_that_an_overtaken_primary_has_mounted_is_verified() -> None:
    """I11 (seed 20003397): two primaries began within 120 ms. The node had registered at the second, and the
    first still mounted its disk: the report that its files were compared was refused, and nothing came after it."""
    faults = (
        Fault(1_939, "pause_master", 1_001, "master-2"),
        Fault(7_418, "wipe_store", 800, other="newest"),
        Fault(8_065, "slow_network", 339, share=0.3),
        Fault(9_036, "kill_master", 367, "master-2"),
        Fault(9_156, "refuse", 348, "master-1", "client-1"),
    )
    shape = ScriptShape(masters=3, clients=2, disk_bytes=8 << 20)
    found = run(Script(24_003_409, shape, (), faults)).violation
    assert found is None, found


def test_an_order_to_restore_outlives_a_term_that_was_late() -> None:
    """Liveness (seed 9004485): while the store was slow the primary's term seemed over, and was then renewed; the order
    that came in between waited for a term for ever, and every other one was refused meanwhile."""
    faults = (
        Fault(1_784, "pause_master", 3_345, "master-0"),
        Fault(3_443, "kill_master", 8_173, "master-0"),
        Fault(6_833, "take_snapshots", 0),
        Fault(8_074, "wipe_store", 1_791, "masters", "newest"),
        Fault(9_437, "late_store", 7_293, share=0.8),
    )
    shape = ScriptShape(nodes=1, clients=4, segment_bytes=1 << 20, slowest_ms=20, disk_bytes=1 << 19)
    assert run(Script(26_004_536, shape, (), faults)).violation is None


def test_records_of_a_promotion_that_failed_are_not_held_against_the_log() -> None:
    """I5 is for what is in the log: a master that was stopped while it was promoted has records of its own term, and
    another master led in the meantime. Found by seed 20003695, made short."""
    script = Script(
        seed=20003695,
        shape=ScriptShape(segment_bytes=1048576, slowest_ms=100, preset="renew-all", disk_bytes=524288),
        operations=(
            Operation(
                at_ms=997,
                client=1,
                verb="put_many",
                number=142,
                keys=("key/0", "key/2", "key/3"),
                size_bytes=1142,
                hold_ms=1492,
            ),
            Operation(at_ms=1117, client=2, verb="upsert", number=33, keys=("key/2",), size_bytes=1033, hold_ms=1568),
            Operation(
                at_ms=1334,
                client=2,
                verb="remove",
                number=40,
                keys=("key/2",),
                size_bytes=262184,
                durability="memory",
                hold_ms=394,
            ),
            Operation(at_ms=1473, client=1, verb="get", number=98, keys=("key/1",), size_bytes=262242, hold_ms=2422),
            Operation(at_ms=1553, client=1, verb="put", number=94, keys=("key/2",), size_bytes=4094, hold_ms=936),
            Operation(at_ms=1645, client=1, verb="get", number=64, keys=("key/3",), size_bytes=262208, hold_ms=2990),
            Operation(
                at_ms=1654,
                client=0,
                verb="get",
                number=16,
                keys=("key/1",),
                size_bytes=262160,
                replicas=2,
                hold_ms=3465,
            ),
            Operation(at_ms=1940, client=1, verb="get", number=90, keys=("key/1",), size_bytes=1090, hold_ms=290),
            Operation(at_ms=2184, client=2, verb="put", number=110, keys=("key/3",), size_bytes=262254, hold_ms=1932),
            Operation(at_ms=2199, client=0, verb="get", number=28, keys=("key/2",), size_bytes=262172, hold_ms=2690),
            Operation(at_ms=2212, client=1, verb="get", number=134, keys=("key/1",), size_bytes=262278, hold_ms=2702),
            Operation(at_ms=2228, client=2, verb="put", number=200, keys=("scene/late",), size_bytes=262344),
            Operation(at_ms=2229, client=2, verb="exists", number=65, keys=("key/2",), size_bytes=4065, hold_ms=490),
            Operation(
                at_ms=2567,
                client=2,
                verb="upsert",
                number=47,
                keys=("key/2",),
                size_bytes=262191,
                replicas=2,
                hold_ms=619,
            ),
            Operation(at_ms=2625, client=1, verb="get", number=122, keys=("key/1",), size_bytes=262266, hold_ms=71),
            Operation(at_ms=3060, client=0, verb="put", number=54, keys=("key/0",), size_bytes=262198, hold_ms=1943),
            Operation(
                at_ms=3127, client=0, verb="put", number=59, keys=("key/0",), size_bytes=262203, replicas=2, hold_ms=478
            ),
            Operation(at_ms=3219, client=2, verb="get", number=96, keys=("key/0",), size_bytes=262240, hold_ms=562),
            Operation(
                at_ms=3426,
                client=0,
                verb="put_many",
                number=120,
                keys=("key/1", "key/2", "key/3"),
                size_bytes=262264,
                durability="memory",
                hold_ms=1971,
            ),
            Operation(at_ms=4122, client=0, verb="put", number=5, keys=("key/3",), size_bytes=1005, hold_ms=3440),
            Operation(at_ms=4479, client=2, verb="view", number=133, keys=("key/1",), size_bytes=262277, hold_ms=3570),
            Operation(at_ms=4515, client=0, verb="put", number=127, keys=("key/0",), size_bytes=262271, hold_ms=2931),
            Operation(
                at_ms=4852,
                client=2,
                verb="put_many",
                number=2,
                keys=("key/0", "key/1", "key/3"),
                size_bytes=262146,
                replicas=2,
                hold_ms=3308,
            ),
            Operation(at_ms=5218, client=1, verb="put", number=49, keys=("key/1",), size_bytes=262193, hold_ms=3025),
        ),
        faults=(
            Fault(at_ms=1547, kind="kill_master", lasts_ms=37, one="master-0"),
            Fault(at_ms=2128, kind="slow_threads", lasts_ms=1500, one="client-2", share=0.1),
            Fault(at_ms=2395, kind="cut", lasts_ms=9000, one="client-2", other="node-0"),
            Fault(at_ms=2395, kind="cut", lasts_ms=9000, one="client-2", other="node-1"),
            Fault(at_ms=4154, kind="kill_master", lasts_ms=543, one="master-0"),
            Fault(at_ms=4494, kind="fade", lasts_ms=8813, one="client-0"),
            Fault(at_ms=5029, kind="lost_requests", lasts_ms=388, share=0.8),
            Fault(at_ms=5339, kind="reset", lasts_ms=0, one="master-1", other="node-1"),
            Fault(at_ms=6746, kind="pause_master", lasts_ms=1780, one="master-0"),
            Fault(at_ms=6835, kind="pause_client", lasts_ms=1500, one="client-0"),
        ),
    )
    found = run(script)
    assert found.violation is None, found.violation
