"""SGLang's storage backend on a real cluster: all layouts, ranks and calls, and failures that are misses."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import holdfast
from holdfast.errors import BadValue, ObjectLeased, Unreachable
from holdfast.instant import now_seconds
from tests.failover.cluster import Cluster
from tests.integrations.sglang_shapes import (
    LAYOUTS,
    PAGES,
    HiCacheStorageConfig,
    HostPool,
    LogicalPool,
    MLATokenToKVPoolHost,
    PoolHitPolicy,
    PoolName,
    PoolTransfer,
    tokens,
)
from tests.waiting import wait_until

Attach = Callable[..., Any]
TIMEOUT_S = 5.0
SLACK_S = 10.0
"""What a busy machine may add to a timeout before it counts as one that was not kept."""


@pytest.fixture
def attach(cluster: Cluster, closed_at_the_end: list[Callable[[], object]]) -> Attach:
    """A backend as SGLang makes it, with its pool registered; closed at the end."""
    from holdfast.integrations.sglang import HiCacheHoldfast

    def make(pool: Any = None, extra: dict[str, Any] | None = None, **config: Any) -> Any:
        extra_config = {"address": cluster.address, "timeout": TIMEOUT_S, "interface_v1": 1, **(extra or {})}
        backend = HiCacheHoldfast(HiCacheStorageConfig(extra_config=extra_config, **config), {})
        closed_at_the_end.append(backend.close)
        if pool is not None:
            backend.register_mem_pool_host(pool)
        return backend

    return make


@pytest.mark.parametrize("layout", LAYOUTS)
def test_pages_go_from_one_engine_to_another_in_every_layout(attach: Attach, layout: str) -> None:
    first, second = HostPool(layout, seed=1), HostPool(layout, seed=2)
    writer, reader = attach(first), attach(second)
    keys = ["aa", "bb", "cc"]
    assert writer.batch_set_v1(keys, tokens(3, 0, 7)) == [True] * 3
    assert reader.batch_exists([*keys, "dd"]) == 3
    assert reader.batch_get_v1(["cc", "aa", "bb"], tokens(1, 5, 9)) == [True] * 3
    assert [second.page(page) for page in (1, 5, 9)] == [first.page(page) for page in (7, 3, 0)]


def test_a_missing_page_costs_itself(attach: Attach) -> None:
    pool = HostPool()
    backend = attach(pool)
    assert backend.batch_set_v1(["a", "c"], tokens(0, 1)) == [True, True]
    untouched = pool.page(5)
    assert backend.batch_get_v1(["a", "b", "c"], tokens(4, 5, 6)) == [True, False, True]
    assert (pool.page(4), pool.page(5), pool.page(6)) == (pool.page(0), untouched, pool.page(1))
    assert backend.batch_exists(["a", "b", "c"]) == 1
    assert backend.batch_exists([]) == 0


def test_what_is_stored_already_counts_as_stored(attach: Attach) -> None:
    backend = attach(HostPool())
    assert backend.batch_set_v1(["a"], tokens(0)) == [True]
    assert backend.batch_set_v1(["a", "b"], tokens(1, 2)) == [True, True]


RANKS = [{"tp_rank": 1, "tp_size": 2}, {"pp_rank": 1, "pp_size": 2}, {"attn_cp_rank": 1, "attn_cp_size": 2}]


@pytest.mark.parametrize("other", [*RANKS, {"model_name": "tiny-model"}, {"extra": {"namespace": "blue"}}])
def test_ranks_models_and_namespaces_do_not_see_each_others_pages(attach: Attach, other: dict[str, Any]) -> None:
    """`tiny/model` and `tiny-model` too: names are not folded."""
    alike = {name: 2 for name in other if name.endswith("_size")}
    writer, reader = attach(HostPool(), **alike), attach(HostPool(seed=1), **other)
    assert writer.batch_set_v1(["a"], tokens(0)) == [True]
    assert reader.batch_exists(["a"]) == 0
    assert reader.batch_get_v1(["a"], tokens(0)) == [False]


@pytest.mark.parametrize("other", [HostPool("layer_first"), HostPool("page_first_direct"), HostPool(dtype="int32")])
def test_pages_of_another_format_are_misses_though_they_have_the_same_size(attach: Attach, other: HostPool) -> None:
    writer, reader = attach(HostPool("page_first")), attach(other)
    assert writer.batch_set_v1(["a"], tokens(0)) == [True]
    assert reader.batch_exists(["a"]) == 0


def test_mla_pages_are_written_by_one_rank_and_read_by_all(attach: Attach) -> None:
    pools = [MLATokenToKVPoolHost(seed=seed) for seed in (0, 1)]
    ranks = [attach(pool, is_mla_model=True, tp_rank=rank, tp_size=2) for rank, pool in enumerate(pools)]
    assert ranks[1].batch_set_v1(["a"], tokens(0)) == [True]
    assert ranks[1].batch_exists(["a"]) == 0, "the other rank writes it"
    assert ranks[0].batch_set_v1(["a"], tokens(0)) == [True]
    assert ranks[1].batch_get_v1(["a"], tokens(2)) == [True]
    assert pools[1].page(2) == pools[0].page(0)


def test_state_of_mamba_is_each_ranks_own_even_beside_mla(attach: Attach) -> None:
    backends = []
    for rank in (0, 1):
        backend = attach(MLATokenToKVPoolHost(seed=rank), is_mla_model=True, tp_rank=rank, tp_size=2)
        backend.register_mem_host_pool_v2(HostPool(seed=10 + rank), PoolName.MAMBA)
        backends.append(backend)
    for backend in backends:
        assert backend.batch_set_v2([PoolTransfer(PoolName.MAMBA, tokens(0), ["a"])]) == {PoolName.MAMBA: [True]}
    for rank, backend in enumerate(backends):
        assert backend.batch_get_v2([PoolTransfer(PoolName.MAMBA, tokens(1), ["a"])]) == {"mamba": [True]}
        pool = backend.registered_pools[PoolName.MAMBA]
        assert pool.page(1) == pool.page(0) == HostPool(seed=10 + rank).page(0)


def test_heads_are_split_for_engines_of_another_tensor_size(attach: Attach) -> None:
    """Two ranks of two heads write; four ranks of one head read the same pages."""
    wide = [HostPool("page_head", heads=2, seed=rank) for rank in (0, 1)]
    for rank, pool in enumerate(wide):
        backend = attach(pool, tp_rank=rank, tp_size=2, tp_lcm_size=4, should_split_heads=True)
        assert backend.batch_set_v1(["a", "b"], tokens(0, 1)) == [True, True]
        assert backend.batch_exists(["a", "b", "c"]) == 2
    for rank in range(4):
        narrow = HostPool("page_head", heads=1, seed=9)
        backend = attach(narrow, tp_rank=rank, tp_size=4, tp_lcm_size=4)
        assert backend.batch_get_v1(["b"], tokens(5)) == [True]
        source, part = wide[rank // 2], rank % 2
        half = len(narrow.page(5)) // 2
        whole = source.page(1)
        sides = [whole[side * 2 * half :][part * half : (part + 1) * half] for side in (0, 1)]
        assert narrow.page(5) == b"".join(sides)


def test_v2_moves_the_pages_of_several_pools_in_one_batch(attach: Attach) -> None:
    kv, indexer = HostPool(seed=1), HostPool("layer_first", seed=2)
    backend = attach(kv)
    backend.register_mem_host_pool_v2(kv, PoolName.KV)
    backend.register_mem_host_pool_v2(indexer, PoolName.INDEXER)
    transfers = [PoolTransfer(PoolName.KV, tokens(0, 1), ["a", "b"]), PoolTransfer(PoolName.INDEXER, tokens(2), ["a"])]
    assert backend.batch_set_v2(transfers) == {"kv": [True, True], "indexer": [True]}
    back = [
        PoolTransfer(PoolName.KV, tokens(8, 9), ["a", "b"]),
        PoolTransfer(PoolName.INDEXER, tokens(7, 8), ["a", "b"]),
    ]
    assert backend.batch_get_v2(back) == {"kv": [True, True], "indexer": [True, False]}
    assert (kv.page(8), kv.page(9), indexer.page(7)) == (kv.page(0), kv.page(1), indexer.page(2))
    assert backend.batch_get_v1(["b"], tokens(3)) == [True], "v1 and v2 name the pages of the main pool alike"


def test_prefix_lengths_that_all_pools_allow(attach: Attach) -> None:
    backend = attach(HostPool())
    for name in (PoolName.MAMBA, PoolName.INDEXER):
        backend.register_mem_host_pool_v2(HostPool(), name)
    keys = ["a", "b", "c", "d", "e"]
    backend.batch_set_v1(keys[:4], tokens(0, 1, 2, 3))
    backend.batch_set_v2([PoolTransfer(PoolName.MAMBA, tokens(0, 1), ["b", "d"])])
    backend.batch_set_v2([PoolTransfer(PoolName.INDEXER, tokens(0, 1, 2), ["a", "b", "c"])])
    mamba = PoolTransfer(PoolName.MAMBA, keys=["d"], hit_policy=PoolHitPolicy.TRAILING_PAGES)
    indexer = PoolTransfer(PoolName.INDEXER)
    groups = PoolTransfer(
        PoolName.INDEXER, keys=["a", "b", "c"], hit_policy=PoolHitPolicy.BLOCK_GROUPS, block_pages=4, group_pages=2
    )

    found = backend.batch_exists_v2(keys, [mamba])
    assert (found.kv_hit_pages, found.restorable_prefix_pages) == (4, [2, 4])
    assert found.extra_pool_hit_pages == {"kv": 4, "mamba": 4}
    found = backend.batch_exists_v2(keys, [mamba, indexer])
    assert (found.kv_hit_pages, found.restorable_prefix_pages) == (2, [2])
    assert found.extra_pool_hit_pages == {"kv": 4, "mamba": 4, "indexer": 3}
    found = backend.batch_exists_v2(keys, [groups])
    assert (found.kv_hit_pages, found.extra_pool_hit_pages["indexer"]) == (4, 4), "reported, and limits nothing"
    assert backend.batch_exists_v2(["x"], [mamba]).restorable_prefix_pages == []


def test_a_logical_anchor_has_no_pages_of_its_own(attach: Attach) -> None:
    backend = attach(LogicalPool())
    backend.register_mem_host_pool_v2(HostPool(), PoolName.INDEXER)
    assert backend.batch_set_v1(["a", "b"], tokens(0, 1)) == [True, True]
    assert backend.batch_get_v1(["a"], tokens(0)) == [True]
    backend.batch_set_v2([PoolTransfer(PoolName.INDEXER, tokens(0), ["a"])])
    assert backend.batch_exists_v2(["a", "b"], [PoolTransfer(PoolName.INDEXER)]).kv_hit_pages == 1


def test_generic_calls_move_flat_pages(attach: Attach) -> None:
    pool = HostPool("layer_first")
    backend = attach(pool)
    pages = [pool.get_data_page(0), pool.get_data_page(4)]
    assert backend.batch_set(["a", "b"], pages)
    assert backend.set("c", pages[0])
    assert (backend.exists("a"), backend.exists("x")) == (True, False)
    targets = [pool.get_dummy_flat_data_page() for _ in range(3)]
    found = backend.batch_get(["a", "x", "b"], targets)
    assert found[0] is targets[0]
    assert found[1] is None
    assert [found[0].tobytes(), found[2].tobytes()] == [page.tobytes() for page in pages]
    assert backend.get("c", targets[1]) is targets[1]
    assert backend.batch_exists(["a"]) == 0, "flat pages are no pages of v1"
    with pytest.raises(BadValue, match="target_locations"):
        backend.get("a")


def test_questions_lease_nothing_and_reads_do(attach: Attach, cluster: Cluster) -> None:
    backend = attach(HostPool())
    backend.batch_set_v1(["a"], tokens(0))
    with cluster.connect() as other:
        (key,) = other.keys()
        assert backend.batch_exists(["a"]) == 1
        assert other.remove(key) == 1, "nobody holds a lease"
        backend.batch_set_v1(["a"], tokens(0))
        assert backend.batch_get_v1(["a"], tokens(1)) == [True]
        with pytest.raises(ObjectLeased):
            other.remove(key)


def test_clear_removes_the_pages_of_its_model_only(attach: Attach, cluster: Cluster) -> None:
    ranks = [attach(HostPool(), tp_rank=rank, tp_size=2) for rank in (0, 1)]
    other = attach(HostPool(), model_name="tiny/mode")
    for backend in (*ranks, other):
        backend.batch_set_v1(["a"], tokens(0))
    with cluster.connect() as cache:
        cache.put("something else", b"x")
        assert ranks[0].clear() is True
        assert [backend.batch_exists(["a"]) for backend in (*ranks, other)] == [0, 0, 1]
        assert cache.exists("something else")


def test_figures_are_told_once(attach: Attach) -> None:
    backend = attach(HostPool(), enable_storage_metrics=True)
    backend.batch_set_v1(["a", "b"], tokens(0, 1))
    backend.batch_get_v1(["a", "x"], tokens(0, 1))
    told = backend.get_stats()
    assert (told.backup_pgs, told.prefetch_pgs) == ([2], [1])
    assert told.backup_bandwidth[0] > 0
    assert told.prefetch_bandwidth[0] > 0
    assert backend.get_stats().backup_pgs == []
    assert attach(HostPool()).get_stats() is None


@pytest.mark.parametrize(
    ("extra", "text"),
    [
        ({"adress": "x"}, "unknown key 'adress'; did you mean 'address'"),
        ({"colour": 1}, "unknown key 'colour'; there are address"),
        ({"timeout": "5"}, "'timeout' is a number, not '5'"),
        ({"timeout": 0}, "'timeout' is over 0"),
        ({"replicas": 0}, "'replicas' is 1 to"),
        ({"replicas": 1.5}, "'replicas' is a whole number"),
        ({"verify": "no"}, "'verify' is true or false"),
        ({"tls_cert": "a.pem"}, "need 'tls_ca'"),
        ({"namespace": "a\nb"}, "printable"),
    ],
)
def test_a_wrong_option_is_named(attach: Attach, extra: dict[str, Any], text: str) -> None:
    with pytest.raises(BadValue, match=text):
        attach(extra=extra)


def test_the_options_of_sglang_itself_are_let_through(attach: Attach) -> None:
    attach(extra={"backend_name": "holdfast", "module_path": "x", "class_name": "y", "allocator": "shm"})


def test_address_and_token_may_come_from_the_environment(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    from holdfast.integrations.sglang import HiCacheHoldfast

    monkeypatch.setenv("HOLDFAST_ADDRESS", cluster.address)
    backend = HiCacheHoldfast(HiCacheStorageConfig(), {})
    backend.close()


def test_attaching_fails_with_the_reason(attach: Attach) -> None:
    with pytest.raises(BadValue, match="no model name"):
        attach(model_name=None)
    with pytest.raises(Unreachable, match=r"SGLang is not connected to holdfast: no master answered at 127.0.0.1:1 "):
        attach(extra={"address": "127.0.0.1:1", "connect_timeout": 0.5})


class OfDevice:
    class device:  # noqa: N801 - as tensors have it.
        type = "cuda"


def test_a_pool_that_cannot_be_moved_fails_the_attachment(attach: Attach) -> None:
    backend = attach()
    with pytest.raises(BadValue, match="tells no addresses"):
        backend.register_mem_pool_host(object())
    pool = HostPool()
    pool.kv_buffer = OfDevice()
    with pytest.raises(BadValue, match="lies in cuda memory; holdfast moves host memory only"):
        backend.register_mem_pool_host(pool)
    with pytest.raises(BadValue, match="cannot be named; register_mem_pool_host"):
        attach().exists("a")

    class Odd:
        kv_buffer = np.zeros(8)
        layout = "round"

        def get_page_buffer_meta(self, indices: Any) -> Any:
            raise ValueError("Unsupported layout: round")

    with pytest.raises(BadValue, match=r"layout 'round' gives no addresses.*choose another --hicache-mem-layout"):
        backend.register_mem_pool_host(Odd())
    with pytest.raises(BadValue, match="5 host indices do not make 2 pages"):
        attach(HostPool()).batch_get_v1(["a", "b"], np.arange(5))


def test_a_pool_that_tells_no_addresses_is_copied(attach: Attach) -> None:
    class Opaque(HostPool):
        def get_page_buffer_meta(self, indices: Any) -> Any:
            raise NotImplementedError("use a whole-page storage backend")

        def get_data_page(self, index: int, flat: bool = True) -> Any:
            return self.kv_buffer[index * self.size_per_token : (index + self.page_size) * self.size_per_token].copy()

        def set_from_flat_data_page(self, index: int, page: Any) -> None:
            self.kv_buffer[index * self.size_per_token : (index + self.page_size) * self.size_per_token] = page

    pool = Opaque()
    backend = attach(pool)
    assert backend.batch_set_v1(["a", "b"], tokens(2, 3)) == [True, True]
    untouched = pool.page(6)
    assert backend.batch_get_v1(["b", "x", "a"], tokens(5, 6, 7)) == [True, False, True]
    assert (pool.page(5), pool.page(6), pool.page(7)) == (pool.page(3), untouched, pool.page(2))


class Traffic:
    """Threads that write and read pages for as long as a block, as SGLang's do. Wrong bytes are kept as evidence."""

    def __init__(self, attach: Attach, **extra: Any) -> None:
        self.source = HostPool(seed=1)
        self.writer = attach(self.source, extra)
        self.pool = HostPool(seed=2)
        self.reader = attach(self.pool, extra)
        self.wrong: list[str] = []
        self.raised: list[BaseException] = []
        self.longest_s = 0.0
        self.read = self.asked = self.written = 0
        self._ended = threading.Event()
        self._threads = [threading.Thread(target=self._run, args=(work,)) for work in (self._write, self._read)]

    def __enter__(self) -> Traffic:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        for thread in self._threads:
            thread.join()

    def _run(self, work: Callable[[int], None]) -> None:
        while not self._ended.wait(0.01):
            began = now_seconds()
            try:
                work(self.written)
            except BaseException as error:  # noqa: BLE001 - The test fails with it.
                self.raised.append(error)
                return
            self.longest_s = max(self.longest_s, now_seconds() - began)

    def _write(self, number: int) -> None:
        self.writer.batch_set_v1([f"{number}-{page}" for page in range(4)], tokens(0, 1, 2, 3))
        self.written += 1

    def _read(self, number: int) -> None:
        keys = [f"{max(0, number - 3)}-{page}" for page in range(4)]
        there = self.reader.batch_exists(keys)
        for page, good in enumerate(self.reader.batch_get_v1(keys[:there], tokens(*range(4, 4 + there)))):
            self.read += good
            if good and self.pool.page(4 + page) != self.source.page(page):
                self.wrong.append(keys[page])
        self.asked += 1

    def wait_for_reads(self, more: int = 20) -> None:
        goal = self.read + more
        wait_until(lambda: self.read >= goal or self.raised, 60, "pages are read")

    def judge(self) -> None:
        assert not self.raised
        assert not self.wrong
        assert self.longest_s < TIMEOUT_S + SLACK_S


def test_a_failover_in_the_middle_of_traffic_costs_nothing_but_time(attach: Attach, cluster: Cluster) -> None:
    with Traffic(attach) as traffic:
        traffic.wait_for_reads()
        dead = cluster.primary()
        dead.kill()
        cluster.primary(but=dead)
        traffic.wait_for_reads()
    traffic.judge()


def test_a_stopped_node_makes_misses_and_comes_back(attach: Attach, cluster: Cluster) -> None:
    """Over TCP: on its machine a stopped node's memory is read all the same."""
    with Traffic(attach, shared_memory=False, timeout=1.0) as traffic:
        traffic.wait_for_reads()
        cluster.nodes[0].pause()
        asked, written = traffic.asked, traffic.written
        wait_until(lambda: traffic.asked > asked + 2 and traffic.written > written + 2, 90, "calls still end")
        cluster.nodes[0].resume()
        traffic.wait_for_reads()
    traffic.judge()


def test_without_masters_calls_are_misses_at_once_until_one_is_back(attach: Attach, cluster: Cluster) -> None:
    pool = HostPool()
    backend = attach(pool, extra={"timeout": 1.0})
    backend.batch_set_v1(["a"], tokens(0))
    for master in cluster.masters:
        master.kill()
    assert backend.batch_get_v1(["b"], tokens(1)) == [False]
    wait_until(lambda: backend._cache.away, what="the outage is known")
    began = now_seconds()
    for number in range(2_000):
        assert backend.batch_exists([f"c{number}"]) == 0
        assert backend.batch_get_v1(["a"], tokens(1)) == [False]
    assert backend.batch_set_v1(["b"], tokens(1)) == [False]
    assert now_seconds() - began < 60, "2,000 questions wait for one timeout at most, not for one each"
    cluster.heal()
    wait_until(lambda: backend.batch_exists(["a"]) == 1, 40, "the page is there again")
    assert backend.batch_get_v1(["a"], tokens(1)) == [True]
    assert pool.page(1) == pool.page(0)
    wait_until(lambda: backend.batch_set_v1(["b"], tokens(1)) == [True], 40, "it stores again")


def test_closing_twice_is_harmless_and_calls_afterwards_are_misses(attach: Attach) -> None:
    backend = attach(HostPool())
    backend.batch_set_v1(["a"], tokens(0))
    backend.close()
    backend.close()
    assert backend.batch_exists(["a"]) == 0
    assert backend.batch_get_v1(["a"], tokens(0)) == [False]
    assert backend.batch_set_v1(["b"], tokens(0)) == [False]


def test_a_page_is_one_object_whatever_its_layout(attach: Attach, cluster: Cluster) -> None:
    for layout in LAYOUTS:
        pool = HostPool(layout)
        attach(pool).batch_set_v1([f"{page:x}" for page in range(PAGES)], np.arange(PAGES * pool.page_size))
    with cluster.connect() as cache:
        assert len(list(cache.keys("sglang/"))) == PAGES * len(LAYOUTS)
    assert holdfast.__version__
