"""A simulated client: the production asyncio client, doing the operations of a script and noting what it sees."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field

import msgspec

from holdfast.client.async_cache import AsyncCache
from holdfast.client.operations.places import refresh
from holdfast.client.state.client import Core
from holdfast.errors import HoldfastError, LeaseLost, ObjectNotFound, Refused, TryAgain
from holdfast.instant import now_seconds
from holdfast.messages.requests import CommitPuts, Exists
from holdfast.messages.rows import PutRow
from holdfast.messages.shapes import Message
from holdfast.operations.masters import Masters
from holdfast.simulation.kernel.process import ProcessLoop
from holdfast.simulation.kernel.scheduler import MS, SECOND
from holdfast.simulation.scripts.history import ClientCall, History, key_in, named, value_of
from holdfast.simulation.scripts.script import Operation
from holdfast.simulation.world.node_bytes import SimulatedBytes
from holdfast.simulation.world.nodes import NodeMachine
from holdfast.simulation.world.thieves import Thief
from holdfast.simulation.world.torn_writes import TearingRunner

CALL_SECONDS = 6.0


@dataclass(slots=True)
class ClientMachine:
    name: str
    host: str
    masters: str
    nodes: Mapping[str, NodeMachine]
    history: History
    longest_lease_ms: int
    """The longest lease that may be given in this world."""
    stores_checksums: bool = False
    """Puts store checksums; reads compare them only where production does so whatever the client's setting."""
    tenant: str = ""
    thief: Thief | None = None
    """Where there are tenants: tries what it got tickets for on other bytes."""
    process: ProcessLoop | None = None
    core: Core | None = None
    bytes: SimulatedBytes | None = None
    cache: AsyncCache | None = None
    running: dict[int, ClientCall] = field(default_factory=dict)

    def start(self, process: ProcessLoop) -> None:
        self.process = process
        self.core = self.cache = None
        self.running = {}
        process.spawn(self._connect)

    async def _connect(self) -> None:
        assert self.process is not None
        self.bytes = SimulatedBytes(self.process, self.host, self.nodes)
        # Checksums would hide wrong bytes by reading again: here wrong bytes must show.
        # The token of a tenant's identity is the tenant's name.
        self.core = Core(now_seconds, self.tenant, False, self.bytes)
        self.core.stores_checksums = self.stores_checksums
        runner = TearingRunner(self.core, Masters(self.masters), self.process, self._sends)
        while True:
            try:
                deadline = now_seconds() + 2
                await runner.run(refresh(self.core, deadline), deadline)
                break
            except HoldfastError:
                await asyncio.sleep(0.1)
        self.cache = AsyncCache(self.core, runner, CALL_SECONDS)

    def _sends(self, message: Message) -> None:
        if isinstance(message, CommitPuts):
            assert self.process is not None
            for offset, _, _ in PutRow.iter_unpack(message.rows):
                self.history.commits_sent[message.grant, offset] = self.process.scheduler.now_ns
        elif isinstance(message, Exists) and message.without:
            for call in self.running.values():
                call.asked_without = True

    def died(self) -> None:
        """Note that calls under way may have happened: the process was killed."""
        for call in self.running.values():
            call.outcome = "unknown"
        self.running = {}
        if self.bytes is not None:
            self.bytes.process_died()

    @property
    def alive(self) -> bool:
        return self.process is not None and not self.process.dead

    def do(self, operation: Operation) -> None:
        """Begin the operation, if the client is alive."""
        process = self.process
        if process is not None and self.cache is not None and not process.dead:
            process.scheduler.after(0, lambda: self._begin(operation), process)

    def _begin(self, operation: Operation) -> None:
        assert self.process is not None
        assert self.core is not None
        seen = operation
        if self.tenant:
            seen = msgspec.structs.replace(operation, keys=tuple(named(self.tenant, key) for key in operation.keys))
        call = ClientCall(seen, self.process.scheduler.now_ns, tenant=self.tenant)
        self._note_leases(call)
        self.history.calls.append(call)
        self.running[operation.number] = call
        task = self.process.create_task(self._run(call, operation))
        if operation.cancel_ms:
            self.process.scheduler.after(operation.cancel_ms * MS, task.cancel, self.process)

    def _note_leases(self, call: ClientCall) -> None:
        """Note the leases that the call may read under, and when they began."""
        assert self.process is not None
        assert self.core is not None
        now, now_ns = now_seconds(), self.process.scheduler.now_ns
        if self.thief is not None:
            self.thief.note_grants(self.core.grants.by_id.values(), self.core.segments.places)
        for key in call.operation.keys:
            lease = self.core.leases.live(key_in(key), now)
            if lease is not None:
                if self.thief is not None:
                    self.thief.note(lease.tickets, self.core.segments.places, now_ns)
                held_s = self.longest_lease_ms / 1000 - (lease.until - now)
                since_ns = now_ns - self.process.world_ns(max(0.0, held_s)) - SECOND // 10
                call.leased_since_ns[key] = min(since_ns, call.leased_since_ns.get(key, since_ns))

    async def _run(self, call: ClientCall, operation: Operation) -> None:
        """`operation`: with the keys as this client calls them."""
        assert self.cache is not None
        try:
            # Another call's reply may have brought a lease since this one began: it was asked for earlier.
            self._note_leases(call)
            if operation.verb == "pry":
                call.result = self._pry()
            else:
                call.result = self._named(await _DO[operation.verb](self.cache, operation))
            call.outcome = "done"
            if isinstance(call.result, Found):
                call.left_out = call.result.left_out
            self._note_leases(call)
        except (Refused, TryAgain, LeaseLost) as error:
            call.outcome, call.error = "refused", f"{error.code}: {error}"
        except HoldfastError as error:
            call.outcome, call.error = "unknown", f"{error.code}: {error}"
        except asyncio.CancelledError:
            call.outcome, call.error = "unknown", "it was cancelled"
        finally:
            if self.process is not None:
                call.answered_ns = self.process.scheduler.now_ns
            self.running.pop(call.operation.number, None)

    def _named(self, result: object) -> object:
        """A result with this tenant's keys, as checkers name them."""
        if isinstance(result, Found) and self.tenant:
            found = Found({named(self.tenant, key): value for key, value in result.items()})
            found.left_out = frozenset(named(self.tenant, key) for key in result.left_out)
            return found
        return [named(self.tenant, key) for key in result] if isinstance(result, list) else result

    def _pry(self) -> list[str]:
        assert self.process is not None
        return self.thief.loot(self.process.scheduler.now_ns) if self.thief is not None else []


async def _put(cache: AsyncCache, operation: Operation) -> bool:
    value = value_of(operation.number, operation.size_bytes)
    return await cache.put(
        operation.keys[0],
        value,
        replicas=operation.replicas,
        durability=operation.durability,
        upsert=operation.verb == "upsert",
        soft_pin=operation.pin == "soft",
        hard_pin=operation.pin == "hard",
    )


async def _put_many(cache: AsyncCache, operation: Operation) -> int:
    value = value_of(operation.number, operation.size_bytes)
    return await cache.put_many(dict.fromkeys(operation.keys, value), durability=operation.durability)


async def _get(cache: AsyncCache, operation: Operation) -> bytes | None:
    return await cache.get(operation.keys[0], None)


class Found(dict[str, bytes]):
    """The reply to get_many, and the keys that are not in it because they could not be read."""

    left_out: frozenset[str]


async def _get_many(cache: AsyncCache, operation: Operation) -> Found:
    errors: dict[str, HoldfastError] = {}
    found = Found(await cache.get_many(operation.keys, errors=errors))
    found.left_out = frozenset(errors)
    return found


async def _reserve(cache: AsyncCache, operation: Operation) -> bool:
    """Fill it in two parts, with time between them, and commit. False: the key was there already."""
    value = value_of(operation.number, operation.size_bytes)
    reservation = await cache.reserve(operation.keys[0], len(value), replicas=operation.replicas)
    if reservation is None:
        return False
    async with reservation:
        await reservation.write(len(value) // 2, value[len(value) // 2 :])
        await asyncio.sleep(operation.hold_ms / 1000)
        await reservation.write(0, value[: len(value) // 2])
        return await reservation.commit()


async def _abandon(cache: AsyncCache, operation: Operation) -> None:
    """Abandon a reservation while another task still fills it."""
    value = value_of(operation.number, operation.size_bytes)
    reservation = await cache.reserve(operation.keys[0], len(value), replicas=operation.replicas)
    if reservation is None:
        return
    filling = asyncio.create_task(reservation.write(0, value))
    await asyncio.sleep(operation.hold_ms / 1000)
    await reservation.abandon()
    await filling


async def _hold(cache: AsyncCache, operation: Operation) -> Found:
    """Lease them twice, release them once, and read them when the first lease alone would have ended."""
    await cache.lease_many(operation.keys)
    try:
        await cache.lease_many(operation.keys)
        await cache.release_many(operation.keys)
        await asyncio.sleep(operation.hold_ms / 1000)
        return await _get_many(cache, operation)
    finally:
        await cache.release_many(operation.keys)


async def _view(cache: AsyncCache, operation: Operation) -> bytes | None:
    """View it for a while. Returns the bytes at the end, if the view was valid until then."""
    try:
        async with cache.view(operation.keys[0]) as view:
            await asyncio.sleep(operation.hold_ms / 1000)
            return bytes(view)
    except ObjectNotFound:
        return None


async def _list(cache: AsyncCache, operation: Operation) -> list[str]:
    return sorted([key async for key in cache.keys(operation.keys[0])])


async def _remove_matching(cache: AsyncCache, operation: Operation) -> int:
    return await cache.remove_matching(f"^{operation.keys[0]}$")


_DO: dict[str, Callable[[AsyncCache, Operation], Awaitable[object]]] = {
    "put": _put,
    "upsert": _put,
    "put_many": _put_many,
    "get": _get,
    "get_many": _get_many,
    "exists": lambda cache, operation: cache.exists(operation.keys[0]),
    "touch": lambda cache, operation: cache.exists(operation.keys[0], touch=True),
    "view": _view,
    "remove": lambda cache, operation: cache.remove(operation.keys[0]),
    "force_remove": lambda cache, operation: cache.remove(operation.keys[0], force=True),
    "remove_matching": _remove_matching,
    "remove_all": lambda cache, operation: cache.remove_all(),
    "reserve": _reserve,
    "abandon": _abandon,
    "hold": _hold,
    "pin": lambda cache, operation: cache.pin(operation.keys[0], hard=operation.pin == "hard"),
    "unpin": lambda cache, operation: cache.unpin(operation.keys[0]),
    "list": _list,
}
