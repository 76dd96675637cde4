"""Traffic through every face at once, as engines make it, until SIGTERM. Each call is one line of JSON in the file that
is named, told to whoever asserts: this program judges nothing but bytes.

    engines.py MASTERS COORDINATION TIMEOUT FILE
"""

from __future__ import annotations

import asyncio
import ctypes
import itertools
import json
import logging
import os
import random
import signal
import sys
import threading
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Protocol

from tests.integrations import lmcache_shapes, sglang_shapes, vllm_shapes
from tests.integrations.lmcache_shapes import (
    CHUNK_TOKENS,
    TOKEN_BYTES,
    CacheEngineKey,
    ConnectorContext,
    LocalMemory,
    MemoryObject,
    ObjectKey,
)
from tests.integrations.sglang_shapes import PAGE, HiCacheStorageConfig, HostPool, tokens
from tests.integrations.vllm_shapes import CHUNK_BYTES, HostMemory, LookupResult, ReqContext, TransferJob, spec
from tests.waiting import wait_until

EACH = 4
"""Objects of a batch: enough that every node has some."""
ROUND_S = 0.2
GIVE_UP_S = 60.0
"""For an answer that an engine would wait for without end."""
SIZE = 16 << 10
Bytes = list[bytes | None]


def value_of(face: str, number: int, size: int) -> bytes:
    return random.Random(f"{face} {number}").randbytes(size)


class Face(Protocol):
    """An engine on one face. Answers are for each number: stored or not, there or not, the bytes or None."""

    size: int

    def put(self, numbers: list[int], values: list[bytes]) -> list[bool]: ...
    def exists(self, numbers: list[int]) -> list[bool]: ...
    def get(self, numbers: list[int]) -> Bytes: ...
    def close(self) -> None: ...


class Mooncake:
    size = SIZE

    def __init__(self, address: str, timeout_s: float) -> None:
        from holdfast.compat.mooncake.store import MooncakeDistributedStore

        os.environ["HOLDFAST_TIMEOUT"] = os.environ["HOLDFAST_MOONCAKE_PUT_TIMEOUT"] = str(timeout_s)
        self._store = MooncakeDistributedStore()
        said = {"local_hostname": "engines", "metadata_server": "P2PHANDSHAKE", "master_server_addr": address}
        assert self._store.setup({**said, "global_segment_size": 0, "local_buffer_size": 1 << 20}) == 0
        self._buffer = ctypes.create_string_buffer(EACH * SIZE)
        self._places = [ctypes.addressof(self._buffer) + place * SIZE for place in range(EACH)]

    def put(self, numbers: list[int], values: list[bytes]) -> list[bool]:
        self._buffer.raw = b"".join(values)
        return [code == 0 for code in self._store.batch_put_from(self._keys(numbers), self._places, [SIZE] * EACH)]

    def exists(self, numbers: list[int]) -> list[bool]:
        return [code == 1 for code in self._store.batch_is_exist(self._keys(numbers))]

    def get(self, numbers: list[int]) -> Bytes:
        codes = self._store.batch_get_into(self._keys(numbers), self._places, [SIZE] * EACH)
        pairs = zip(self._places, codes, strict=True)
        return [ctypes.string_at(place, code) if code > 0 else None for place, code in pairs]

    def close(self) -> None:
        self._store.close()

    def _keys(self, numbers: list[int]) -> list[str]:
        return [f"mooncake/{number}" for number in numbers]


class SGLang:
    def __init__(self, address: str, timeout_s: float) -> None:
        from holdfast.integrations.sglang import HiCacheHoldfast

        self._pool = HostPool()
        self.size = PAGE * self._pool.size_per_token
        extra = {"address": address, "timeout": timeout_s, "interface_v1": 1}
        self._backend = HiCacheHoldfast(HiCacheStorageConfig(extra_config=extra), {})
        self._backend.register_mem_pool_host(self._pool)

    def put(self, numbers: list[int], values: list[bytes]) -> list[bool]:
        for page, value in enumerate(values):
            pointers, sizes = self._pool.get_page_buffer_meta(tokens(page))
            for place, (pointer, size) in enumerate(zip(pointers, sizes, strict=True)):
                ctypes.memmove(pointer, value[place * size : (place + 1) * size], size)
        return list(self._backend.batch_set_v1(self._keys(numbers), tokens(*range(EACH))))

    def exists(self, numbers: list[int]) -> list[bool]:
        there = self._backend.batch_exists(self._keys(numbers))
        return [place < there for place in range(EACH)]

    def get(self, numbers: list[int]) -> Bytes:
        good = self._backend.batch_get_v1(self._keys(numbers), tokens(*range(EACH, 2 * EACH)))
        return [self._pool.page(EACH + place) if one else None for place, one in enumerate(good)]

    def close(self) -> None:
        self._backend.close()

    def _keys(self, numbers: list[int]) -> list[str]:
        return [f"{number:x}" for number in numbers]


class VLLM:
    size = CHUNK_BYTES

    def __init__(self, address: str, timeout_s: float) -> None:
        from holdfast.integrations.vllm import HoldfastTier

        self._memory = HostMemory()
        self._tier = HoldfastTier(spec(), self._memory.view, "HoldfastTier", address=address, timeout=timeout_s)
        self._jobs = itertools.count(1)
        self._request = ReqContext("request-0")

    def put(self, numbers: list[int], values: list[bytes]) -> list[bool]:
        for row, value in enumerate(values):
            self._memory.view.cast("B")[row * CHUNK_BYTES : (row + 1) * CHUNK_BYTES] = value
        job = TransferJob(next(self._jobs), self._keys(numbers), list(range(EACH)), False, self._request)
        self._tier.submit_store(job)
        return [self._finished(job).success] * EACH

    def exists(self, numbers: list[int]) -> list[bool]:
        self._request = ReqContext(f"request-{next(self._jobs)}")
        keys = self._keys(numbers)

        def answered() -> list[Any] | None:
            found = [self._tier.lookup(key, self._request) for key in keys]
            self._tier.on_schedule_end(None)
            return None if LookupResult.RETRY in found else found

        found = wait_until(answered, GIVE_UP_S, "the lookup is answered")
        assert found is not None
        self._tier.on_request_finished(self._request)
        return [one is LookupResult.HIT for one in found]

    def get(self, numbers: list[int]) -> Bytes:
        self._request = ReqContext(f"request-{next(self._jobs)}")
        rows = list(range(EACH, 2 * EACH))
        job = TransferJob(next(self._jobs), self._keys(numbers), rows, True, self._request)
        self._tier.submit_load(job)
        result = self._finished(job)
        good = set(job.keys) if result.success else set(result.successful_keys or ())
        self._tier.on_request_finished(self._request)
        return [self._memory.chunk(row) if key in good else None for key, row in zip(job.keys, rows, strict=True)]

    def close(self) -> None:
        self._tier.shutdown()

    def _finished(self, job: TransferJob) -> Any:
        found = wait_until(lambda: list(self._tier.get_finished_jobs()), GIVE_UP_S, "the job is finished")
        assert [one.job_id for one in found] == [job.job_id]
        return found[0]

    def _keys(self, numbers: list[int]) -> list[bytes]:
        return [number.to_bytes(32, "big") + bytes(4) for number in numbers]


def lmcache_options(address: str, timeout_s: float) -> dict[str, object]:
    return {"address": address, "timeout_s": timeout_s, "store_timeout_s": timeout_s}


class L2Adapter:
    size = SIZE

    def __init__(self, address: str, timeout_s: float) -> None:
        from holdfast.integrations import lmcache

        options = lmcache_options(address, timeout_s) | {"key_prefix": "plugin"}
        self._adapter: Any = lmcache.HoldfastL2Adapter(lmcache.HoldfastL2AdapterConfig.from_dict(options))

    def put(self, numbers: list[int], values: list[bytes]) -> list[bool]:
        task = self._adapter.submit_store_task(self._keys(numbers), [MemoryObject(SIZE, value) for value in values])
        done = wait_until(self._adapter.pop_completed_store_tasks, GIVE_UP_S, "the store is done")
        return [done[task].is_successful()] * EACH

    def exists(self, numbers: list[int]) -> list[bool]:
        task = self._adapter.submit_lookup_and_lock_task(self._keys(numbers), {})
        found = wait_until(lambda: self._adapter.query_lookup_and_lock_result(task), GIVE_UP_S, "the lookup is done")
        there = [found.test(place) for place in range(EACH)]
        self._adapter.submit_unlock([key for key, one in zip(self._keys(numbers), there, strict=True) if one])
        return there

    def get(self, numbers: list[int]) -> Bytes:
        targets = [MemoryObject(SIZE) for _ in numbers]
        task = self._adapter.submit_load_task(self._keys(numbers), targets)
        found = wait_until(lambda: self._adapter.query_load_result(task), GIVE_UP_S, "the load is done")
        return [bytes(one) if found.test(place) else None for place, one in enumerate(targets)]

    def close(self) -> None:
        self._adapter.close()

    def _keys(self, numbers: list[int]) -> list[ObjectKey]:
        return [ObjectKey(number.to_bytes(8, "big"), "org/model", 0x01000100) for number in numbers]


class NativeConnector:
    size = SIZE

    def __init__(self, address: str, timeout_s: float) -> None:
        from holdfast.integrations import lmcache

        options = lmcache_options(address, timeout_s) | {"key_prefix": "native"}
        self._connector = lmcache.HoldfastNativeConnector(**options)

    def put(self, numbers: list[int], values: list[bytes]) -> list[bool]:
        return self._done(self._connector.submit_batch_set(self._keys(numbers), [memoryview(one) for one in values]))

    def exists(self, numbers: list[int]) -> list[bool]:
        return self._done(self._connector.submit_batch_exists(self._keys(numbers)))

    def get(self, numbers: list[int]) -> Bytes:
        targets = [bytearray(SIZE) for _ in numbers]
        good = self._done(self._connector.submit_batch_get(self._keys(numbers), [memoryview(one) for one in targets]))
        return [bytes(target) if one else None for target, one in zip(targets, good, strict=True)]

    def close(self) -> None:
        self._connector.close()

    def _done(self, number: int) -> list[bool]:
        [(which, _, _, each)] = wait_until(self._connector.drain_completions, GIVE_UP_S, "the batch is done")
        assert which == number
        assert each is not None
        return each

    def _keys(self, numbers: list[int]) -> list[str]:
        return [f"chunk/{number}" for number in numbers]


class RemoteConnector:
    size = CHUNK_TOKENS * TOKEN_BYTES

    def __init__(self, address: str, timeout_s: float) -> None:
        from holdfast.integrations import lmcache

        start = "remote_storage_plugin.holdfast"
        extra = {f"{start}.{key}": value for key, value in lmcache_options(address, timeout_s).items()}
        self._memory = LocalMemory()
        context = ConnectorContext("plugin://holdfast", self._memory, SimpleNamespace(extra_config=extra))
        self._loop = asyncio.Runner()
        self._connector = lmcache.HoldfastConnectorAdapter().create_connector(context)

    def put(self, numbers: list[int], values: list[bytes]) -> list[bool]:
        """The interface tells nobody whether it was stored."""
        chunks = [MemoryObject(self.size, value, CHUNK_TOKENS) for value in values]
        self._loop.run(self._connector.batched_put(self._keys(numbers), chunks))
        return [True] * EACH

    def exists(self, numbers: list[int]) -> list[bool]:
        there = self._connector.batched_contains(self._keys(numbers))
        return [place < there for place in range(EACH)]

    def get(self, numbers: list[int]) -> Bytes:
        found = self._loop.run(self._connector.batched_get(self._keys(numbers)))
        self._memory.given.clear()
        return [None if one is None else bytes(one) for one in found]

    def close(self) -> None:
        self._loop.run(self._connector.close())
        self._loop.close()

    def _keys(self, numbers: list[int]) -> list[CacheEngineKey]:
        return [CacheEngineKey(number) for number in numbers]


FACES: dict[str, Any] = {
    "mooncake": Mooncake,
    "sglang": SGLang,
    "vllm": VLLM,
    "lmcache plugin": L2Adapter,
    "lmcache native": NativeConnector,
    "lmcache in-process": RemoteConnector,
}
BY_COORDINATION = "lmcache native"
"""Finds its masters by the coordination's address; the others are given the masters'."""


class Traffic(threading.Thread):
    """One face's rounds: put a new batch, ask for it, read it, read an earlier one."""

    def __init__(self, name: str, face: Face, ended: threading.Event, told: Any) -> None:
        super().__init__(name=name)
        self._face = face
        self._ended = ended
        self._told = told
        self._draw = random.Random(name)

    def run(self) -> None:
        batch = 0
        while not self._ended.wait(ROUND_S):
            for verb in ("put", "exists", "get"):
                self._call(verb, batch)
            self._call("get", self._draw.randrange(batch + 1))
            batch += 1
        self._call("close", batch)

    def _call(self, verb: str, batch: int) -> None:
        line: dict[str, object] = {"face": self.name, "verb": verb, "batch": batch, "began": time.monotonic()}
        try:
            line["outcome"] = self._outcome(verb, list(range(batch * EACH, (batch + 1) * EACH)))
        except BaseException as error:  # noqa: BLE001 - any is a defect, and is told.
            line |= {"outcome": "raised", "text": repr(error)}
        line["ended"] = time.monotonic()
        self._told.write(json.dumps(line) + "\n")

    def _outcome(self, verb: str, numbers: list[int]) -> str:
        """`good`, `part` of it, a `miss`, or `wrong` bytes."""
        if verb == "close":
            self._face.close()
            return "good"
        values = [value_of(self.name, number, self._face.size) for number in numbers]
        if verb == "get":
            found = self._face.get(numbers)
            if any(one is not None and one != value for one, value in zip(found, values, strict=True)):
                return "wrong"
            good = [one is not None for one in found]
        else:
            good = self._face.put(numbers, values) if verb == "put" else self._face.exists(numbers)
        return "good" if all(good) else "part" if any(good) else "miss"


def main() -> None:
    masters, coordination, timeout, file = sys.argv[1:]
    logging.basicConfig(format="%(asctime)s %(name)s %(message)s")
    ended = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: ended.set())
    for shapes in (sglang_shapes, vllm_shapes):
        sys.modules.update(shapes.modules())
    with lmcache_shapes.in_place_of_lmcache(), Path(file).open("w", buffering=1) as told:
        addresses = {name: coordination if name == BY_COORDINATION else masters for name in FACES}
        faces = {name: face(addresses[name], float(timeout)) for name, face in FACES.items()}
        threads = [Traffic(name, face, ended, told) for name, face in faces.items()]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()


if __name__ == "__main__":
    main()
