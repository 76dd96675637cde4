"""The promises, checked: at every change of the log, at every reply, now and then, and when the world has healed.

A checker sees the whole world, which no process inside it can. The first violation ends the run.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from traceback import extract_tb

from holdfast.core.primary.decision import NextStep, Parked, Unfinished
from holdfast.core.state.state import State
from holdfast.instant import Instant
from holdfast.master.engine.engine import Engine, Reply
from holdfast.messages.of_nodes import MountDisk
from holdfast.messages.requests import Failed
from holdfast.messages.shapes import Message, Record
from holdfast.simulation.checks.bound_checks import BoundChecks
from holdfast.simulation.checks.clock_checks import ClockChecks, may_hold_an_instant
from holdfast.simulation.checks.convergence import Convergence
from holdfast.simulation.checks.linearizability import NEVER_NS, Step, is_linearizable, steps_in_log, where_objects_hide
from holdfast.simulation.checks.log_checks import LEFT_BY_ITSELF, LogChecks, spans_of
from holdfast.simulation.checks.pin_checks import PinChecks
from holdfast.simulation.checks.puts.put_checks import PutChecks
from holdfast.simulation.checks.puts.successor_checks import SuccessorChecks
from holdfast.simulation.checks.renewal_checks import RenewalChecks
from holdfast.simulation.checks.restore_checks import NOT_RESTORED, RestoreChecks, name_of
from holdfast.simulation.checks.room_checks import RoomChecks
from holdfast.simulation.checks.session_checks import SessionChecks
from holdfast.simulation.checks.tenants.client_checks import ClientChecks
from holdfast.simulation.checks.tenants.holding_checks import HoldingChecks
from holdfast.simulation.checks.tenants.namespace_checks import NamespaceChecks
from holdfast.simulation.checks.tenants.quota_checks import QuotaChecks
from holdfast.simulation.checks.write_checks import WriteChecks
from holdfast.simulation.kernel.network import Endpoint
from holdfast.simulation.kernel.scheduler import MS
from holdfast.simulation.kernel.violations import Broken, Violation
from holdfast.simulation.scripts.history import ClientCall, number_of
from holdfast.simulation.scripts.stories import subjects_of, text_of
from holdfast.simulation.world.masters import MasterMachine
from holdfast.simulation.world.world import LEADER_TTL_MS, World

GUESS_NS = int(LEADER_TTL_MS * 1.05) * MS
LOOK_NS = 100 * MS


class Checkers:
    def __init__(self, world: World) -> None:
        self.world = world
        self.violation: Violation | None = None
        self.restores = RestoreChecks(self.report, world.nodes, lambda: world.scheduler.now_ns)
        self.log = LogChecks(world.clients, self.restores, self.report)
        self.sessions = SessionChecks(world.nodes, world.confirmed, self.report)
        self.log.session_closed = self.sessions.closed
        self.bounds = BoundChecks(world, self.report)
        self.renewals = RenewalChecks(world, self.report)
        self.convergence = Convergence(world, self.log, self.bounds, self.renewals)
        self.writes = WriteChecks(world.clients, world.nodes, self.report)
        self.clocks = ClockChecks(world.clocks, self.report)
        self.pins = PinChecks(world.history, self.report, lambda: world.scheduler.now_ns)
        self.room = RoomChecks(self.report)
        self.puts = PutChecks(world.history, world.nodes, self.report)
        self.namespaces = NamespaceChecks(world.history, self.log, self.report)
        self.holdings = HoldingChecks(self.report)
        self.successors = SuccessorChecks()
        self.undecided = 0
        """The number of keys whose orders could not be searched to the end."""
        self._terms: list[tuple[int, bool]] = []
        """(epoch, is it sure that the one before has ended?)"""
        self._guessed: list[tuple[int, int]] = []
        """(from, until): times in which an earlier primary may answer beside one that took over by a guess."""
        self._lost: dict[int, int] = {}
        """Histories that the store has lost, and when."""
        self._seen_batch = 0
        self._first_batch = 1
        """The first batch that the log still held at the last check."""
        self._looked: dict[str, tuple[State, int, int]] = {}
        """(state, index, durable index) of each master at the last check."""
        self.log.may_begin = world.history_may_begin
        world.wiped = self._wiped
        world.struck = self.successors.struck
        world.stored_history = lambda: self.log.state.log_id
        world.store.only.observe = self._store_changed
        world.watch_engine = self._watch_engine
        world.network.send = partial(self._sent, world.network.send)  # type: ignore[method-assign]
        world.scheduler.after(LOOK_NS, self._look)

    def report(self, promise: str, what: str, subject: str = "") -> None:
        if self.violation is None:
            self.violation = Violation(promise, self.world.now_ms, what, subject)
            self.world.tell(str(self.violation), subject)
            self.world.broken = True

    # At everything that is sent.

    def _sent(self, send: Callable[[Endpoint, bytes | None], None], sender: Endpoint, data: bytes | None) -> None:
        if data is not None and may_hold_an_instant(data):
            self.clocks.left(data, sender.owner.name, f"a message to {sender.peer_name}")
        send(sender, data)

    # At every change of the log.

    def _store_changed(self) -> None:
        cluster = self.world.store.only
        self.clocks.store_changed(cluster)
        self.bounds.published()
        record = cluster.record
        if record is not None and (not self._terms or record.epoch > self._terms[-1][0]):
            self._terms.append((record.epoch, not record.doubtful))
            if record.doubtful:
                now_ns = self.world.scheduler.now_ns
                self._guessed.append((now_ns, now_ns + GUESS_NS))
            self.world.tell(
                f"epoch {record.epoch} begins at {record.address}{' by a guess' if record.doubtful else ''}"
            )
        if cluster.last > self._seen_batch:
            self._seen_batch = cluster.last
            epoch, batch = cluster.batches[cluster.last]
            assert record is not None
            self.world.scheduler.trace.update(batch)
            self.clocks.left(batch, f"epoch {epoch}", "a batch")
            for one in self.log.appended(cluster.last, epoch, record.epoch, batch):
                self._tell_record(epoch, one)
                self.writes.appended(one, self.log.state)
                self.bounds.appended(one, self.log.state)
                self.pins.appended(one, self.log.state)
                self.puts.appended(one, self.log.state)
                self.successors.appended(one, self.world.now_ms)
                if self.world.script.shape.tenants:
                    self.namespaces.appended(one)

    def _wiped(self) -> None:
        """The store is about to lose everything: what follows is another history, with its own epochs and ids."""
        self._lost[self.log.state.log_id] = self.world.scheduler.now_ns
        self.log.wiped()
        self.pins.wiped()
        self.successors.wiped()
        self._seen_batch, self._first_batch = 0, 1
        self._terms.clear()
        self._looked.clear()

    def _tell_record(self, epoch: int, record: Record) -> None:
        if self.world.lines is not None:
            fates = self.log.fates
            keys = subjects_of(record, lambda oid: fates[oid].key if oid in fates else "")
            self.world.tell(f"log, epoch {epoch}: {text_of(record)}", *(name_of(self.log.state, key) for key in keys))

    # At every reply.

    def _watch_engine(self, machine: MasterMachine, engine: Engine) -> None:
        if self.log.state.log_id not in (0, engine.state.log_id):
            self.report("I19", f"{machine.name} leads with the state of another history than the log", machine.name)
        self.log.same_as(engine.state, machine.name)
        self.renewals.leads(machine)
        doubt = engine.primary.doubt
        doubt.when_over = partial(self._doubt_over, engine.state.epoch, doubt.when_over)
        engine.handle = partial(self._handle, machine, engine, engine.handle)  # type: ignore[method-assign]
        self.room.watch(machine.name, engine)
        checked = partial(self.room.tick, machine.name, engine, engine.tick)
        if self.world.script.shape.tenants:
            checked = partial(QuotaChecks(machine.name, engine, self.report).tick, checked)
            assert machine.master is not None, "it has just begun to lead"
            clients = ClientChecks(machine.name, engine, machine.master.server, self.report)
            engine.handle = partial(clients.handle, engine.handle)  # type: ignore[method-assign]
        engine.tick = partial(self._tick, machine, checked)  # type: ignore[method-assign]

    def _doubt_over(self, epoch: int, then: Callable[[str], None], witness: str) -> None:
        """This primary believes that no earlier one answers from here on: it may remove objects that those may show."""
        self._terms = [(one, proven or one == epoch) for one, proven in self._terms]
        self.world.tell(f"epoch {epoch} knows from {witness} that no earlier primary answers any more")
        then(witness)

    def _tick(self, machine: MasterMachine, tick: Callable[[Instant], bool], now: Instant) -> bool:
        try:
            return tick(now)
        except Exception as error:
            self._defect(machine, error)
            raise

    def _defect(self, machine: MasterMachine, error: Exception) -> None:
        """Report a defect. Production logs it and goes on; here it is a violation."""
        self.report("I10", f"a defect: {machine.name}: {error!r} at {_where(error)}", machine.name)

    def _handle(
        self,
        machine: MasterMachine,
        engine: Engine,
        handle: Callable[[Message | NextStep, int, int, Instant], tuple[Reply, int]],
        request: Message | NextStep,
        client: int,
        connection: int,
        now: Instant,
    ) -> tuple[Reply, int]:
        gone, before = self.puts.gone(engine.primary, request), engine.state.next_counter
        try:
            reply, wait_for = handle(request, client, connection, now)
        except Exception as error:
            self._defect(machine, error)
            raise
        if gone and isinstance(reply, Message):
            self.puts.decided(gone, engine.primary, before, reply)
        lost_ns = self._lost.get(engine.state.log_id)
        if isinstance(reply, Failed | Parked | Unfinished):
            if isinstance(request, MountDisk) and isinstance(reply, Failed):
                self.restores.disk_refused(request, reply.code, engine.state.log_id)
            return reply, wait_for
        if lost_ns is not None:
            # It cannot have renewed its term since. Until that ends it may answer, also beside a restored history.
            if self.world.scheduler.now_ns > lost_ns + GUESS_NS:
                what = f"{machine.name} answers {type(request).__name__} for a history that the store lost long ago"
                self.report("I12", what, machine.name)
        else:
            later = [epoch for epoch, proven in self._terms if epoch > engine.state.epoch and proven]
            if later:
                self.report(
                    "I12",
                    f"{machine.name} answers {type(request).__name__} in epoch {engine.state.epoch}, though epoch "
                    f"{later[0]} has begun and had it that this one was over",
                    machine.name,
                )
        return reply, wait_for

    # Now and then.

    def _old_grants(self) -> None:
        """I19: a client that knows of this history holds no grant of another."""
        for name, client in self.world.clients.items():
            core = client.core
            if core is None or core.welcome is None or not client.alive or core.welcome.log_id != self.log.state.log_id:
                continue
            for grant in core.grants.by_id.values():
                if grant.id not in self.log.granted:
                    what = f"{name} holds grant {grant.id.serial}, which its history never gave"
                    self.report("I19", what, f"grant {grant.id.serial}")

    def _look(self) -> None:
        self.sessions.look()
        self._old_grants()
        self._trimmed()
        for machine in self.world.masters.values():
            self.clocks.look(machine.name, machine.disk)
            master = machine.alive
            if master is None:
                continue
            engine = master.server.engine
            state = master.standby.state if engine is None else engine.state
            durable = engine.log.durable if engine is not None and engine.log is not None else -1
            if engine is None and state.tenants and self.world.rules.standby_eviction == "independent":
                self.holdings.hidden(machine.name, state)
            known, *seen = self._looked.get(machine.name, (None, 0, 0))
            if known is state and seen == [state.index, durable]:
                continue  # Nothing was applied since.
            self._looked[machine.name] = (state, state.index, durable)
            self.holdings.look(machine.name, state)
            if engine is not None:
                self._partition(machine, engine)
                self.bounds.look(machine.name, engine)
            elif master.primary_role is None:
                self.log.same_as(state, machine.name)
                self.renewals.look(machine.name, state)
            # Else it is being promoted: it has applied records of its own term, which may never be in the log.
        for name, each in self.world.machines.items():
            if each.process is not None and each.process.failures:
                self.report("I10", f"a defect: {each.process.failures[0]}", name)
        self.world.scheduler.after(LOOK_NS, self._look)

    def _trimmed(self) -> None:
        """I13, I19: batches trimmed from the log are in a snapshot of the log's own history."""
        first, log_id = next(iter(self.world.store.only.batches), 1), self.log.state.log_id
        newest = max(machine.disk.newest_batch(log_id) for machine in self.world.masters.values())
        if first > self._first_batch and first > newest + 1:
            what = f"the log was trimmed through batch {first - 1}, and snapshots of its history reach to {newest}"
            self.report("I13", what, f"batch {first - 1}")
        self._first_batch = first

    def _partition(self, machine: MasterMachine, engine: Engine) -> None:
        log = engine.log
        all_durable = log is not None and log.index == log.durable
        taken = spans_of(engine.state)
        for claim in engine.primary.claims.values():
            for handle, offset, length in claim.pieces:
                taken[handle].append((offset, offset + length))
        if not taken.keys() <= engine.state.segments.keys():
            self.report("I9", f"{machine.name} keeps bytes of segments that are mounted no more", machine.name)
        for handle, allocator in engine.primary.allocators.items():
            free = [(start, start + size) for start, size in allocator.free_ranges()]
            at = 0
            for start, end in sorted([*taken.get(handle, []), *free]):
                if start < at or (all_durable and start > at):
                    what = "two own" if start < at else "nobody owns"
                    self.report(
                        "I9", f"{machine.name}: {what} bytes {min(start, at)}.. of segment {handle}", machine.name
                    )
                at = max(at, end)

    # When the world has healed.

    def healed(self) -> None:
        self.convergence.begin()

    def converged(self) -> bool:
        return self.world.broken or self.convergence.done()

    def at_end(self) -> None:
        if self.violation is None:
            late = self.convergence.unfinished()
            if late:
                self.report(*late)
        if self.violation is None:
            self._tenants()
            self._acknowledged()
            self._bytes()
            self._orders()
        if self.violation is not None:
            raise Broken(self.violation)

    def _tenants(self) -> None:
        """I20: on every master the holdings are what a look at every object finds; and nobody saw another's."""
        for name, machine in self.world.masters.items():
            if (master := machine.alive) is not None:
                engine = master.server.engine
                self.holdings.look(name, master.standby.state if engine is None else engine.state)
        self.namespaces.at_end()

    def _acknowledged(self) -> None:
        """I1: an object that was acknowledged as stored is in the log."""
        stored = {(fate.key, fate.size_bytes) for fate in self.log.all_fates()}
        for call in self.world.history.calls:
            operation = call.operation
            if operation.verb not in ("put", "upsert", "put_many", "reserve") or operation.durability == "memory":
                continue
            if call.outcome == "done" and call.result == (
                len(operation.keys) if operation.verb == "put_many" else True
            ):
                for key in operation.keys:
                    if (key, operation.size_bytes) not in stored and not self.successors.may_be_lost(call):
                        self.report(
                            "I1", f"put {operation.number} of {key} was acknowledged and is not in the log", key
                        )

    def _bytes(self) -> None:
        """I2: the bytes that were read are the bytes that were put under that key."""
        puts = {
            (key, call.operation.number): call.operation.size_bytes
            for call in self.world.history.calls
            for key in call.operation.keys
            if call.operation.size_bytes
        }
        for call in self.world.history.calls:
            for key, value in _read(call).items():
                number = number_of(value)
                if number is None or puts.get((key, number)) != len(value):
                    self.report("I2", f"call {call.operation.number} read wrong bytes under {key}", key)

    def _orders(self) -> None:
        gone = (*LEFT_BY_ITSELF, NOT_RESTORED)
        left = {(fate.key, fate.size_bytes) for fate in self.log.all_fates() if fate.left in gone}
        in_log = {(fate.key, fate.size_bytes) for fate in self.log.all_fates()}
        calls = self.world.history.calls
        for key in sorted({key for call in calls for key in call.operation.keys}):
            steps = [step for call in calls for step in steps_in_log(call, key, in_log, left)]
            steps = [step for step in steps if not self._is_a_miss_after_a_guess(step) and not self._is_unsure(step)]
            steps += self._setbacks(key)
            steps += self._removals_in_two_histories(key)
            # Objects on a disk that is away are hidden until it is back, as are unlogged evictions.
            if not self.world.rules.logs_evictions or self.world.script.shape.disk_bytes:
                steps = [seen for step in steps for seen in where_objects_hide(step)]
            possible = is_linearizable(steps)
            if possible is None:
                self.undecided += 1
            elif not possible:
                self.report("I7", f"what the clients saw of {key} cannot have happened in any order", key)

    def _setbacks(self, key: str) -> list[Step]:
        """Steps for restores from less than the log held: the objects they brought back, which may leave again."""
        steps: list[Step] = []
        numbers = {
            call.operation.size_bytes: call.operation.number
            for call in self.world.history.of_key(key)
            if call.operation.size_bytes
        }
        for setback in self.restores.setbacks:
            number = numbers.get(setback.sizes.get(key, 0), 0)
            steps.append(Step("becomes", number, setback.at_ns, setback.at_ns))
            if number:
                steps.append(Step("leaves", number, setback.at_ns, NEVER_NS, optional=True))
        return steps

    def _removals_in_two_histories(self, key: str) -> Iterator[Step]:
        """Removals that were first made in a history that is over, and answered by the next: that one does not know
        what they removed, and says nothing."""
        for call in self.world.history.of_key(key):
            removed_nothing = call.outcome == "done" and not call.result
            if call.operation.verb not in ("remove", "force_remove") or not removed_nothing:
                continue
            if any(call.called_ns <= changed <= call.answered_ns for changed in self.restores.changed_ns):
                yield Step("may_take", 0, call.called_ns, call.answered_ns, optional=True)

    def _is_unsure(self, step: Step) -> bool:
        """Is it near such a restore? Then it may see either history: the old primary answers until its term ends, and
        leases that it gave are valid until they end."""
        unsure_ns = GUESS_NS + self.world.longest_lease_ms * MS * 11 // 10
        return step.effect == "sees" and any(
            step.from_ns <= setback.at_ns + unsure_ns and setback.at_ns <= step.until_ns
            for setback in self.restores.setbacks
        )

    def _is_a_miss_after_a_guess(self, step: Step) -> bool:
        """Is it a miss at an earlier primary? Until its deadline that one may not know of later puts. Objects that it
        has are not removed by anyone."""
        if step.effect != "sees" or step.number != 0:
            return False
        return any(step.from_ns <= until and start <= step.until_ns for start, until in self._guessed)


def _where(error: Exception) -> str:
    return " < ".join(f"{frame.filename}:{frame.lineno}" for frame in reversed(extract_tb(error.__traceback__)[-3:]))


def _read(call: ClientCall) -> dict[str, bytes]:
    if call.outcome != "done" or call.operation.verb not in ("get", "get_many", "view", "hold"):
        return {}
    if isinstance(call.result, dict):
        return call.result
    return {call.operation.keys[0]: call.result} if isinstance(call.result, bytes) else {}
