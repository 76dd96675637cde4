"""A master of its own process for the sessions theme: the production server and engine, told when to notify whom.

Reads lines: `notify NAME` sends that follower the time. Ends at the end of its input. Prints its address first.
"""

from __future__ import annotations

import asyncio
import sys

from holdfast.core.primary.primary import Primary
from holdfast.core.rules import Rules
from holdfast.core.state.state import State
from holdfast.errors import HoldfastError
from holdfast.instant import SYSTEM_CLOCK, now_ms
from holdfast.master.engine.engine import Engine
from holdfast.master.engine.shell import EngineShell
from holdfast.master.server import RpcServer
from holdfast.settings import MasterSettings


async def main() -> None:
    server = RpcServer("bench", "", MasterSettings.model_fields["busy_poll_us"].default)
    engine = Engine(Primary(State(), Rules()), shell=EngineShell(on_upkeep_failure=server.upkeep_failed))
    engine.start_log(1, "bench", bytes(32), now_ms())
    engine.start_epoch(1, now_ms())
    host, port = await server.start("127.0.0.1", 0)
    server.lead(engine)
    print(f"{host}:{port}", flush=True)
    reader = asyncio.StreamReader()
    loop = asyncio.get_running_loop()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    while line := (await reader.readline()).decode().split():
        try:
            engine.notify(line[1], "stamp", SYSTEM_CLOCK().to_bytes(8, "little"), now_ms())
        except HoldfastError as error:
            print(f"{line[1]} was not told: {error}", file=sys.stderr)
    await server.stop()


if __name__ == "__main__":
    try:
        import uvloop

        uvloop.run(main())
    except ImportError:  # asyncio's own loop serves as well, only slower.
        asyncio.run(main())
