"""A primary that was stopped keeps its connections open and says nothing: an asyncio client notices, and goes on."""

from __future__ import annotations

import asyncio
import signal

import holdfast
from tests.e2e.rig import Rig


async def test_an_asyncio_client_gives_up_a_primary_without_a_sign_of_life() -> None:
    """I10: well before its own deadline, and without an error."""
    with Rig("64MiB", masters=2, coordination="sqlite", leader_ttl_ms=1_500) as rig:
        async with holdfast.connect_async(rig.address, timeout=120) as cache:
            await cache.put("kept", b"x" * 1_000)
            status = await cache.status()
            stopped = rig.masters[status.name][0]
            stopped.send_signal(signal.SIGSTOP)
            try:
                async with asyncio.timeout(60):
                    assert await cache.exists("kept")
                    assert await cache.put("after", b"y")
                assert (await cache.status()).epoch > status.epoch
            finally:
                stopped.send_signal(signal.SIGCONT)
            assert await cache.get("kept") == b"x" * 1_000
