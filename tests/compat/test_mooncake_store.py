"""What the table of answers does not show of the drop-in: tenants, probes, segments, settings, threads."""

from __future__ import annotations

import ctypes
import inspect
import json
import logging
import os
import threading
from pathlib import Path

import pytest

from holdfast.cli.processes import run
from holdfast.compat.mooncake import link, segment
from holdfast.compat.mooncake.async_store import MooncakeDistributedStoreAsync
from holdfast.compat.mooncake.configuration import MooncakeConfig
from holdfast.compat.mooncake.names import Names
from holdfast.compat.mooncake.store import (
    BufferPool,
    MooncakeDistributedStore,
    MooncakeHostMemAllocator,
    ReplicateConfig,
    SoftPinAction,
)
from holdfast.instant import now_seconds
from holdfast.messages.requests import NodeInfo
from tests.compat.conftest import set_up
from tests.e2e.rig import Rig
from tests.waiting import run_together, wait_until


@pytest.fixture(autouse=True)
def _says_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(link, "_said", set())


def test_tenants_share_a_cluster_and_see_their_own_keys_only(cluster: Rig, store: MooncakeDistributedStore) -> None:
    team = MooncakeDistributedStore()
    assert set_up(team, cluster.address, tenant_id="team|a") == 0
    try:
        assert store.put("same", b"default's") == team.put("same", b"team's") == 0
        assert (store.get("same"), team.get("same")) == (b"default's", b"team's")
        assert team.put("only", b"1") == 0
        assert store.is_exist("only") == 0
        assert store.remove_by_regex(".*") == 1
        assert team.get_batch(["same", "only"]) == [b"team's", b"1"]
        assert store.put("mine", b"1") == 0
        assert team.remove_all(force=True) == 2
        assert store.get("mine") == b"1"
        assert store.put("|odd|", b"1") == 0
        assert store.remove_all(force=True) == 2
    finally:
        team.close()


def test_no_two_keys_are_stored_as_one() -> None:
    default, team, long = Names(), Names("t"), "k" * 2_000
    stored = [default.stored(key) for key in ("a", "|t|a", "|default|a", long, long + "x")] + [team.stored("a")]
    assert len({*stored}) == len(stored)
    for names, key in ((default, "a"), (default, "|t|a"), (team, "a"), (team, "|t|a")):
        assert names.shown(names.stored(key) or "") == key
    assert team.shown("a") is None
    assert default.shown(team.stored("a") or "") is None
    assert all(each is not None and len(each.encode()) <= 1024 for each in stored)
    assert default.stored("\ud800") is None


@pytest.mark.parametrize(("probes", "leased"), [("", False), ("look", False), ("lease", True)])
def test_probes_take_no_lease_unless_they_are_told_to(
    cluster: Rig, monkeypatch: pytest.MonkeyPatch, probes: str, leased: bool
) -> None:
    monkeypatch.setenv("HOLDFAST_MOONCAKE_PROBES", probes)
    store = MooncakeDistributedStore()
    assert set_up(store, cluster.address) == 0
    try:
        assert store.put("probed", b"1") == 0
        assert store.batch_is_exist(["probed"]) == [1]
        with cluster.connect() as cache:
            assert (cache.stat("probed").lease_left_ms > 0) is leased
        store.remove_all(force=True)
    finally:
        store.close()


def test_a_get_session_keeps_its_object(cluster: Rig, store: MooncakeDistributedStore) -> None:
    other = MooncakeDistributedStore()
    assert set_up(other, cluster.address) == 0
    try:
        assert store.put("held", b"1") == 0
        assert store.batch_get_session_start(["held"]) == [0]
        assert other.remove("held") == -706
        assert other.batch_remove(["held", "nope"]) == [-706, -704]
    finally:
        other.close()


def test_a_put_session_that_is_never_ended_leaves_nothing(cluster: Rig) -> None:
    store = MooncakeDistributedStore()
    assert set_up(store, cluster.address) == 0
    assert store.batch_put_session_start(["half"], [1 << 20]) == [0]
    store.close()
    with cluster.connect() as cache:
        wait_until(lambda: cache.status().granted_bytes == 0, what="the memory of the session is given back")
        assert not cache.exists("half")


def test_pins_are_passed_on(cluster: Rig, store: MooncakeDistributedStore) -> None:
    hard, soft = ReplicateConfig(), ReplicateConfig()
    hard.with_hard_pin = True
    soft.with_soft_pin = True
    assert soft.soft_pin_action is SoftPinAction.ENABLE
    assert store.put("hard", b"1", hard) == store.put("soft", b"1", soft) == 0
    with cluster.connect() as cache:
        assert cache.stat("hard").hard_pin
        assert cache.stat("soft").soft_pin_left_ms > 0


def test_an_address_that_is_not_mapped_is_refused(
    store: MooncakeDistributedStore, caplog: pytest.LogCaptureFixture
) -> None:
    assert store.put("good", b"12345") == 0
    buffer = ctypes.create_string_buffer(8)
    nowhere = 0x7F00_DEAD_0000_0000
    assert store.put_from("bad", nowhere, 5) == -600
    assert store.batch_put_from(["ok", "bad"], [ctypes.addressof(buffer), nowhere], [5, 5]) == [0, -600]
    assert store.batch_get_into(["good", "good"], [nowhere, ctypes.addressof(buffer)], [5, 8]) == [-600, 5]
    assert buffer.raw[:5] == b"12345"
    assert store.register_buffer(nowhere, 100) == -600
    assert "not mapped" in caplog.text


def test_setup_says_why_it_fails_within_seconds(caplog: pytest.LogCaptureFixture) -> None:
    store = MooncakeDistributedStore()
    began = now_seconds()
    assert set_up(store, "127.0.0.1:1") == -1
    assert now_seconds() - began < 30  # Mooncake takes 90 s; a loaded machine gets its time.
    assert "127.0.0.1:1" in caplog.text
    assert store.health_check() == 1
    assert set_up(store, "nonsense") == -1
    assert store.put("a", b"1") == -600


def test_the_switch_s_address_wins_over_mooncake_s(cluster: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOLDFAST_AS_MOONCAKE", cluster.address)
    store = MooncakeDistributedStore()
    assert set_up(store, "mooncake-master:50051") == 0
    store.close()
    monkeypatch.setenv("HOLDFAST_AS_MOONCAKE", "on")
    assert set_up(store, cluster.address) == 0
    store.close()


def test_setup_takes_the_names_that_engines_use(cluster: Rig) -> None:
    names = inspect.signature(MooncakeDistributedStore.setup).parameters
    assert {"enable_ssd_offload", "tenant_id"} <= {*names}
    store = MooncakeDistributedStore()
    with pytest.raises(TypeError, match="colour"):
        store.setup("127.0.0.1", "P2PHANDSHAKE", 0, 1, "tcp", "", cluster.address, colour="red")  # type: ignore[call-arg]
    positional = ("127.0.0.1", "P2PHANDSHAKE", 0, 1 << 20, "rdma", "mlx5_0", cluster.address)
    assert store.setup(*positional, None, enable_ssd_offload=True, ssd_offload_path="x", tenant_id="t") == 0
    host, _, port = store.get_hostname().rpartition(":")
    assert host == "127.0.0.1"
    assert 12_300 <= int(port) <= 14_300
    store.close()


def test_what_has_no_meaning_here_is_said_once(
    store: MooncakeDistributedStore, caplog: pytest.LogCaptureFixture
) -> None:
    config = ReplicateConfig()
    config.group_ids = ["g"]
    for number in range(3):
        assert store.put(f"grouped{number}", b"1", config) == 0
    assert caplog.text.count("group_ids") == 1


def info(name: str) -> NodeInfo:
    return NodeInfo(name, "", True, 0, "", "", 1, 1, 0)


def test_a_segment_is_declined_where_a_node_could_present_no_certificate(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOLDFAST_TLS_CA", "ca.pem")
    assert "HOLDFAST_TLS_CERT" in segment.declined("on", [], 64 << 20)
    monkeypatch.setenv("HOLDFAST_TLS_CERT", "cert.pem")
    assert segment.declined("on", [], 64 << 20) == ""


def test_a_segment_is_declined_where_the_cluster_has_nodes_of_its_own() -> None:
    size = 64 << 20
    assert "node-1" in segment.declined("auto", [info("node-1")], size)
    assert segment.declined("auto", [], size) == ""
    assert segment.declined("auto", [info(segment.node_name("host:1"))], size) == ""
    assert segment.declined("on", [info("node-1")], size) == ""
    assert segment.declined("off", [], size)
    assert segment.declined("on", [], 100)


def test_the_variable_for_the_parent_is_the_one_that_nodes_read() -> None:
    assert segment.PARENT == run.PARENT


def test_a_name_of_a_node_says_whose_it_is() -> None:
    name = segment.node_name("[::1]:12345")
    assert name == f"engine-1-12345-{os.getpid()}"
    assert name.startswith(segment.node_prefix("[::1]:12345"))
    assert not segment.node_name("host:123").startswith(segment.node_prefix("host:12"))


def test_an_engine_lends_memory_as_long_as_it_is_set_up(
    cluster: Rig, store: MooncakeDistributedStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Set up by a thread that ends at once: the node must not end with it."""
    monkeypatch.setenv("HOLDFAST_MOONCAKE_SEGMENTS", "on")
    lender = MooncakeDistributedStore()
    codes: list[int] = []
    size = {"global_segment_size": "32MB", "local_hostname": "127.0.0.1:12345"}
    setup = threading.Thread(target=lambda: codes.append(set_up(lender, cluster.address, **size)))
    setup.start()
    setup.join()
    assert codes == [0]
    with cluster.connect() as cache:
        names = [node.name for node in cache.nodes().nodes if node.available]
        assert len(names) == 2
        preferred = ReplicateConfig()
        preferred.preferred_segment = lender.get_hostname()
        assert store.put("there", b"1", preferred) == 0
        (place,) = store.get_replica_desc("there")
        endpoint = place.get_memory_descriptor().buffer_descriptor.transport_endpoint
        assert endpoint.startswith("engine-127.0.0.1-12345")
        assert store.batch_replica_clear(["there"], "somewhere:1") == []
        assert store.batch_replica_clear(["there"], lender.get_hostname()) == ["there"]
        assert lender.close() == 0
        wait_until(lambda: sum(node.available for node in cache.nodes().nodes) == 1, what="the engine's node is gone")


def test_several_threads_share_a_store(store: MooncakeDistributedStore) -> None:
    wrong: list[object] = []

    def work(number: int) -> None:
        keys = [f"{number}/{each}" for each in range(20)]
        if store.put_batch(keys, [key.encode() for key in keys]) != 0:
            wrong.append(number)
        if store.get_batch(keys) != [key.encode() for key in keys]:
            wrong.append(keys)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
    run_together(threads)
    assert not wrong


async def test_every_method_can_be_awaited(cluster: Rig) -> None:
    store = MooncakeDistributedStoreAsync()
    assert await store.async_setup("127.0.0.1", "", 0, 1 << 20, "tcp", "", cluster.address) == 0
    assert await store.async_put("awaited", b"1") == 0
    assert await store.async_get_batch(["awaited", "nope"]) == [b"1", b""]
    assert await store.async_remove("awaited") == 0
    with pytest.raises(AttributeError):
        _ = store.async_nothing
    assert await store.async_close() == 0


def test_configurations_come_from_a_file_or_from_variables(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "mooncake.json"
    said = {
        "local_hostname": "here",
        "metadata_server": "m",
        "master_server_address": "a:1",
        "local_buffer_size": "2GB",
    }
    file.write_text(json.dumps(said))
    monkeypatch.setenv("MOONCAKE_CONFIG_PATH", str(file))
    assert MooncakeConfig.load_from_env().local_buffer_size == 2 << 30
    monkeypatch.delenv("MOONCAKE_CONFIG_PATH")
    monkeypatch.setenv("MOONCAKE_MASTER", "b:2")
    monkeypatch.setenv("MOONCAKE_PROTOCOL", "RDMA")
    found = MooncakeConfig.load_from_env()
    assert (found.master_server_address, found.protocol, found.global_segment_size) == ("b:2", "rdma", 3200 << 20)
    monkeypatch.setenv("MOONCAKE_GLOBAL_SEGMENT_SIZE", "half")
    with pytest.raises(ValueError, match="half"):
        MooncakeConfig.load_from_env()


def test_a_pool_hands_out_what_was_released() -> None:
    pool = BufferPool(None, min_size_class=4096, max_regions=1, block_on_exhaustion=False)
    with pool.acquire(4) as lease:
        lease.buffer[:] = b"test"
        with pytest.raises(RuntimeError, match="exhausted"):
            pool.acquire(1)
        with pytest.raises(RuntimeError, match="active leases"):
            pool.close()
    pool.acquire(1).release()
    pool.close()


def test_host_memory_has_an_address() -> None:
    allocator = MooncakeHostMemAllocator()
    address = allocator.alloc(100)
    ctypes.memset(address, 7, 100)
    assert ctypes.string_at(address, 2) == b"\7\7"
    assert (allocator.free(address), allocator.free(address)) == (0, -1)


def test_a_store_that_is_forgotten_is_closed(cluster: Rig, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.ERROR)
    store = MooncakeDistributedStore()
    assert set_up(store, cluster.address) == 0
    cache = store._link.cache if store._link is not None else None
    del store
    assert cache is not None
    with pytest.raises(Exception, match="closed"):
        cache.get("a")


def test_a_client_with_another_timeout_is_the_same_client(cluster: Rig) -> None:
    with cluster.connect() as cache:
        hasty = cache.with_timeout(2.5)
        assert (hasty.timeout, cache.timeout) != (cache.timeout, hasty.timeout)
        hasty.put("by the hasty one", b"1")
        assert cache.get("by the hasty one") == b"1"
        hasty.close()
        with pytest.raises(Exception, match="closed"):
            cache.get("by the hasty one")
