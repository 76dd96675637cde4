"""A master and three workers of one's own, on `holdfast.session`: commands, a failover, a goodbye.

    python examples/sessions.py

The master keeps what the next one needs in a file, as a real one would keep it in its database. Both masters run in
this process, one after the other, at the same port; with real ones, the workers would be given both addresses, or a
coordination URL that knows who leads.
"""

from __future__ import annotations

import asyncio
import sys
import tempfile
from pathlib import Path

import msgspec

from holdfast.session import (
    Event,
    Happening,
    MasterEvent,
    MasterHappening,
    Remembered,
    SessionFollower,
    SessionMaster,
    SessionTimes,
)

# Short, so that the example is; the defaults are 12 s, 5 s and 30 s.
TIMES = SessionTimes(lease_ms=1_200, reply_left_ms=500, jeopardy_ms=5_000)


def say(line: str) -> None:
    # In one piece: the workers are threads, and `print` writes the end of the line by itself.
    sys.stdout.write(f"{line}\n")


class Worker:
    """A follower: what it is told it does, or hands to somebody else if it takes long."""

    def __init__(self, address: str, name: str) -> None:
        self.name = name
        self.follower = SessionFollower(address, name, self.perform, self.on_event)
        self.follower.start()

    def perform(self, command: str, body: bytes) -> None:
        say(f"{self.name} does {command} {body.decode()}")

    def on_event(self, event: Event) -> None:
        if event.kind in (Happening.JEOPARDY, Happening.SAFE_AGAIN, Happening.EXPIRED, Happening.MASTER_CHANGED):
            say(f"{self.name}: {event.kind.value}")


class Book:
    """What must outlive a master, in a file: the sessions that are open."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def write(self, remembered: Remembered) -> None:
        self.path.write_bytes(msgspec.json.encode(remembered))

    def read(self) -> Remembered | None:
        return msgspec.json.decode(self.path.read_bytes(), type=Remembered) if self.path.exists() else None


async def lead(epoch: int, port: int, book: Book, joined: asyncio.Semaphore) -> tuple[SessionMaster, str]:
    def on_event(event: MasterEvent) -> None:
        if event.kind is not MasterHappening.KEEPALIVE:
            say(f"master: session of {event.name} {event.kind.value}")
        if event.kind is MasterHappening.CREATED:
            joined.release()

    master = SessionMaster(epoch, TIMES, on_event, book.write, book.read())
    return master, await master.start(port=port)


async def main(book: Book) -> None:
    joined = asyncio.Semaphore(0)
    first, address = await lead(1, 0, book, joined)
    say("a master leads in epoch 1")
    workers = [await asyncio.to_thread(Worker, address, f"worker-{number}") for number in range(3)]
    for _ in workers:
        await joined.acquire()
    await first.notify("worker-1", "recover", b"chunk 17", confirm=True)
    say("worker-1 has confirmed")

    await first.stop()
    say("the master stops; its workers wait, and lose nothing")
    await asyncio.sleep(2 * TIMES.lease_ms / 1000)
    second, _ = await lead(2, int(address.rpartition(":")[2]), book, joined)
    say("another leads in epoch 2")
    for worker in workers:
        await second.notify(worker.name, "resume", b"work", confirm=True)

    await asyncio.to_thread(workers[0].follower.stop)
    for seen in second.sessions():
        say(f"{seen.name} is {seen.standing.value}, last told {seen.last_command}")
    for worker in workers[1:]:
        await asyncio.to_thread(worker.follower.stop)
    await second.stop()


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        asyncio.run(main(Book(Path(folder) / "sessions.json")))
