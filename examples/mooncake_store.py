"""A program written for Mooncake Store, on holdfast: blocks go out of one arena and come back into it.

Run it while `holdfast up` runs, with or without Mooncake installed: `python examples/mooncake_store.py [HOST:PORT]`.
Engines need no `install`: they are started with HOLDFAST_AS_MOONCAKE (docs/engines/mooncake.md).
"""

from __future__ import annotations

import ctypes
import os
import sys

from holdfast.compat.mooncake import import_hook

BLOCKS, BLOCK_BYTES = 4, 1 << 20


def main() -> int:
    import_hook.install()
    from mooncake.store import MooncakeDistributedStore

    address = sys.argv[1] if len(sys.argv) > 1 else "127.0.0.1:7070"
    store = MooncakeDistributedStore()
    if store.setup("localhost", "P2PHANDSHAKE", 0, 64 << 20, "tcp", "", address) != 0:
        return 1
    filled, empty = (ctypes.create_string_buffer(BLOCKS * BLOCK_BYTES) for _ in range(2))
    filled.raw = os.urandom(len(filled))
    keys = [f"example/{os.getpid()}/{number}" for number in range(BLOCKS)]
    sizes = [BLOCK_BYTES] * BLOCKS
    for arena in (filled, empty):
        store.register_buffer(ctypes.addressof(arena), len(arena))
    print("stored:", store.batch_put_from(keys, places_in(filled), sizes))
    print("read:", store.batch_get_into(keys, places_in(empty), sizes))
    print("equal:", empty.raw == filled.raw)
    print("absent:", store.get_size("example/absent"))
    store.close()
    return 0 if empty.raw == filled.raw else 1


def places_in(arena: ctypes.Array[ctypes.c_char]) -> list[int]:
    begin = ctypes.addressof(arena)
    return [begin + number * BLOCK_BYTES for number in range(BLOCKS)]


if __name__ == "__main__":
    sys.exit(main())
