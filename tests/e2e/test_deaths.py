"""Processes that are killed, stopped and started again."""

from __future__ import annotations

import os
import signal

import pytest

import holdfast
from holdfast import errors
from tests.e2e.rig import Rig, said
from tests.waiting import wait_until

MIB = 1 << 20


def test_reads_go_on_when_a_node_with_one_of_two_replicas_is_killed() -> None:
    with Rig("64MiB", nodes=2) as rig, rig.connect() as cache:
        keys = [f"k{i}" for i in range(100)]
        assert cache.put_many({key: key.encode() * 500 for key in keys}, replicas=2) == 100
        with rig.script("reader", *keys) as reader:
            assert said(reader) == "reading"
            rig.kill(rig.nodes[0])
            for mapped in (True, False):
                with rig.connect(shared_memory=mapped) as fresh:
                    assert fresh.get_many(keys) == {key: key.encode() * 500 for key in keys}
            assert reader.stdin is not None
            reader.stdin.write("\n")
            reader.stdin.flush()
            assert int(said(reader).removeprefix("rounds ")) > 0
            assert reader.wait(30) == 0
        with rig.connect() as hurried, pytest.raises(errors.TryAgain):
            hurried.timeout = 1.0
            hurried.put("new", b"x" * 100, replicas=2)
        assert cache.put("alone", b"x" * 100)


def test_the_memory_of_a_client_killed_between_grant_and_commit_comes_back() -> None:
    """I11"""
    with Rig("64MiB") as rig, rig.connect() as cache:
        with rig.script("raw_writer", "hold", str(8 * MIB)) as writer:
            assert said(writer).startswith("granted")
            assert cache.status().granted_bytes >= 8 * MIB
            writer.kill()
            writer.wait()
            wait_until(lambda: cache.status().granted_bytes < 8 * MIB, what="the node reports its dead writer")
        wait_until(lambda: cache.status().quarantined_bytes == 0, what="nothing waits for the dead")


def test_a_writer_stopped_in_its_copy_changes_nobody_elses_bytes_when_it_goes_on() -> None:
    """I2, I11: its grant times out, and its memory is still given to nobody until it is dead."""
    with Rig("32MiB", grant_timeout_ms=1_000) as rig, rig.connect(shared_memory=False) as cache:
        with rig.script("raw_writer", "scribble", str(8 * MIB)) as writer:
            assert said(writer).startswith("granted")
            writer.send_signal(signal.SIGSTOP)
            wait_until(lambda: cache.status().quarantined_bytes >= 8 * MIB, what="the grant times out")
            stored = {f"k{i}": os.urandom(100_000) for i in range(400)}
            for key, data in stored.items():
                assert cache.put(key, data), "there is room by eviction"
            writer.send_signal(signal.SIGCONT)
            for _ in range(3):
                found = cache.get_many(stored)
                assert len(found) > 150
                assert all(data == stored[key] for key, data in found.items())
                with rig.connect() as mapped:
                    assert all(data == stored[key] for key, data in mapped.get_many(stored).items())
            assert cache.status().quarantined_bytes >= 8 * MIB
        wait_until(lambda: cache.status().quarantined_bytes == 0, what="the writer is dead, its memory free")


def test_nodes_and_clients_outlive_a_master_that_is_killed_and_started_again() -> None:
    """The log is in memory: the catalogue is empty then, and nothing old is ever served as new (I7, I14)."""
    with Rig("32MiB") as rig, rig.connect() as cache:
        cache.put("k", b"old" * 100)
        cache.get("k")
        old_boot = cache.nodes().nodes[0].boot
        rig.restart_master()
        rig.wait_for_nodes(1)
        wait_until(lambda: not cache.exists("k"), what="the client speaks to the new master")
        assert cache.get("k", default=None) is None
        assert cache.put("k", b"new" * 100)
        assert cache.get("k") == b"new" * 100
        assert cache.nodes().nodes[0].boot != old_boot


def test_a_node_started_again_under_its_name_has_new_memory() -> None:
    """I14"""
    with Rig("32MiB") as rig, rig.connect() as cache:
        cache.put("k", b"x" * 1_000)
        rig.kill(rig.nodes[0])
        rig.add_node("bench-0")
        rig.wait_for_nodes(1)
        assert cache.get("k", default=None) is None or cache.get("k") == b"x" * 1_000
        wait_until(lambda: not cache.exists("k"), what="the old memory is void")
        assert cache.put("k", b"y" * 1_000, upsert=True)
        assert cache.get("k") == b"y" * 1_000


def test_a_second_node_with_a_live_name_is_refused() -> None:
    with Rig("32MiB") as rig, rig.connect() as cache:
        cache.put("k", b"x")
        with pytest.raises(SystemExit, match="already called 'bench-0'"):
            rig.add_node("bench-0")
        assert cache.get("k") == b"x"


def test_puts_beyond_the_memory_evict_and_are_never_refused() -> None:
    # Reads lease what they found for a second, so a new batch can be all that may be evicted: what is found of it
    # is right, but it may be nothing.
    with Rig("32MiB", lease_ttl_ms=1_000) as rig, rig.connect() as cache:
        found_at_all = 0
        for batch in range(20):
            items = {f"{batch}/{i}": os.urandom(64 << 10) for i in range(64)}
            assert cache.put_many(items) == 64
            found = cache.get_many(items)
            assert found.items() <= items.items()
            found_at_all += len(found)
        assert found_at_all > 300
        assert cache.status().objects > 100


def test_a_put_without_room_waits_and_says_so_at_its_deadline() -> None:
    with Rig("32MiB") as rig, rig.connect() as cache:
        for i in range(28):
            assert cache.put(f"pinned/{i}", bytes(MIB), hard_pin=True)
        cache.timeout = 2.0
        with pytest.raises(errors.NoRoom, match="pins"):
            cache.put("one more", bytes(8 * MIB))
        # Of a batch, the values that fit are stored all the same.
        batch = {"a": bytes(8 * MIB), **{f"small/{i}": os.urandom(40_000) for i in range(16)}, "z": bytes(8 * MIB)}
        first, *small, last = cache.put_many(batch, outcomes=True, hard_pin=True)
        assert small == [True] * 16
        assert isinstance(first, errors.NoRoom)
        assert isinstance(last, errors.NoRoom)
        cache.timeout = 30.0
        assert cache.remove_matching("^small/", force=True) == 16
        assert cache.remove("pinned/0", force=True) == 1
        assert len(list(cache.keys())) == 27


def test_of_a_batch_of_reservations_what_fits_is_reserved() -> None:
    with Rig("32MiB") as rig, rig.connect() as cache:
        assert cache.put("pinned", bytes(24 * MIB), hard_pin=True)
        small = {f"small/{i}": os.urandom(40_000) for i in range(16)}
        cache.timeout = 4.0
        sizes = {"a": 12 * MIB, **{key: len(value) for key, value in small.items()}, "z": 12 * MIB}
        first, *some, last = cache.reserve_many(sizes)
        assert isinstance(first, errors.NoRoom)
        assert isinstance(last, errors.NoRoom)
        cache.timeout = 30.0
        for reservation, value in zip(some, small.values(), strict=True):
            assert not isinstance(reservation, errors.HoldfastError | None)
            reservation.write(0, value)
        assert cache.commit_many(some) == [True] * 16
        assert cache.get_many(small) == small


def test_a_forked_child_is_told_to_connect_by_itself_and_keeps_no_writer_alive() -> None:
    with Rig("32MiB") as rig, rig.connect() as cache:
        cache.put("k", b"x" * 1_000)
        reading, writing = os.pipe()
        child = os.fork()
        if child == 0:
            try:
                cache.put("from the child", b"x")
                os.write(writing, b"no error")
            except errors.ClientClosed:
                with holdfast.connect(rig.address) as own:
                    own.put("from the child", b"x")
                os.write(writing, b"refused, then connected")
            finally:
                os._exit(0)
        os.close(writing)
        assert os.waitpid(child, 0)[1] == 0
        assert os.read(reading, 100) == b"refused, then connected"
        os.close(reading)
        assert cache.put("from the parent", b"x")
        assert cache.get("from the child") == b"x"
