"""One run: masters, nodes, clients and the store, put together; the script played; the checkers asked.

First come the faults of the script, during which no promise may break. Then the world heals, and within a bound one
primary must serve, the standbys must have its state, and every request must have ended.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import random
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cached_property, partial

import msgspec
import structlog

from holdfast import entropy, instant, witness
from holdfast.core.rules import Rules
from holdfast.errors import HoldfastError
from holdfast.identity.identities import Entry, Identities, Identity, hash_of
from holdfast.identity.roles import ALL_ROLES, Role, with_included
from holdfast.master.engine.engine import Engine
from holdfast.master.histories.histories import Word
from holdfast.master.plan import Plan
from holdfast.master.roles.master import Master
from holdfast.settings import PRESETS, PresetName
from holdfast.simulation.checks.clock_checks import FAR_SECONDS, SPREAD_SECONDS
from holdfast.simulation.kernel.machines import Machine, place
from holdfast.simulation.kernel.network import Network
from holdfast.simulation.kernel.process import SLOWEST_WORK_NS, ProcessLoop
from holdfast.simulation.kernel.scheduler import MS, SECOND, Scheduler
from holdfast.simulation.scripts.history import History
from holdfast.simulation.scripts.script import HEAL_MS, PRIMARY, Fault, Operation, Script, ScriptShape
from holdfast.simulation.scripts.stories import Line
from holdfast.simulation.world.clients import ClientMachine
from holdfast.simulation.world.masters import PORT, MasterMachine
from holdfast.simulation.world.node_disks import SimulatedDisk
from holdfast.simulation.world.nodes import MARK, NodeMachine
from holdfast.simulation.world.operators import Operators
from holdfast.simulation.world.restore_operator import RestoreOperator
from holdfast.simulation.world.store import STORE, ObservedStore, StoreFaults
from holdfast.simulation.world.thieves import Thief

FADE_STEP_MS = 150
FADE_EVERY_MS = 500
OPERATOR_LOOKS_MS = 500
LEADER_TTL_MS = 1_000
PIECE_BYTES = 500
"""So small that a restored catalogue has several pieces, and a restore can break off between them."""
RULES = Rules(
    lease_ttl_ms=2_000,
    grant_timeout_ms=4_000,
    shared_grant_bytes=128 << 10,
    write_window_bytes=1 << 20,
    session_lease_ms=2_400,
    session_reply_left_ms=1_000,
    session_jeopardy_ms=4_000,
    report_interval_ms=5_000,
)


TICKETS_ROLL_MS = 3_000
"""Where there are tenants: so short that tickets expire within a run."""


def identities_of(shape: ScriptShape) -> Identities | None:
    """One of each tenant, whose token is its name, and one of all others; None if there are no tenants."""
    if not shape.tenants:
        return None
    tenants = [
        Identity(name, with_included([Role.OPERATOR]), name, name not in shape.remote)
        for name in sorted({*shape.tenants} - {""})
    ]
    entries = [Entry(one, (hash_of(one.tenant),)) for one in (Identity("cluster", ALL_ROLES), *tenants)]
    return Identities(entries)


def rules_of(name: PresetName) -> Rules:
    """The rules of a preset; presets other than the default are crowded, because they are about eviction."""
    if name == "follow":
        return RULES
    preset = PRESETS[name]
    return replace(
        RULES,
        lease_sync=preset.lease_sync,
        standby_eviction=preset.standby_eviction,
        standby_eviction_grace_ms=RULES.lease_ttl_ms if preset.grace_ms is None else preset.grace_ms,
        high_watermark=0.25,
    )


class World:
    def __init__(self, script: Script) -> None:
        self.script = script
        seed = script.seed
        self.scheduler = Scheduler()
        self.network = Network(self.scheduler, random.Random(f"network {seed}"))
        self.network.slowest_ns = script.shape.slowest_ms * MS
        self.store = ObservedStore(lambda: self.scheduler.now_ns / SECOND)
        self.faults = StoreFaults()
        self.history = History()
        self.lines: list[Line] | None = None
        self.struck: Callable[[Fault, int], None] = lambda fault, now_ms: None
        """Told of each fault: with the master that it means, and the time."""
        self.clocks: list[ProcessLoop] = []
        """Every process that ever lived."""
        self.broken = False
        """Set by a checker: nothing further needs to happen."""
        self.wiped: Callable[[], None] = lambda: None
        """Called when the store has lost everything."""
        self.stored_history: Callable[[], int] = lambda: 0
        """The history in the store, as a checker knows it."""
        self.asked = False
        """The store was emptied, and the operator has not decided yet."""
        self.watch_engine: Callable[[MasterMachine, Engine], None] = lambda machine, engine: None
        self._clocks = random.Random(f"clocks {seed}")
        self._lives = 0
        self._marks = 0
        self.confirmed: list[tuple[str, bytes]] = []
        """(node, mark) that a node has confirmed to a master."""
        shape = script.shape
        self.rules = rules_of(shape.preset)
        if shape.disk_bytes:
            self.rules = replace(self.rules, high_watermark=0.3, offload_ahead=0.6)
        self.operators = Operators(self.scheduler, self._serving)
        self.longest_lease_ms = self._longest_lease_ms()
        addresses = [f"master-{i}:{PORT}" for i in range(shape.masters)]
        self.masters = {
            f"master-{i}": MasterMachine(
                f"master-{i}", self._plan(addresses[i]), self.store, self.faults, self._leads, identities_of(shape)
            )
            for i in range(shape.masters)
        }
        self.nodes = {
            f"node-{i}": NodeMachine(f"node-{i}", ",".join(addresses), shape.segment_bytes) for i in range(shape.nodes)
        }
        for node in self.nodes.values():
            node.peers = self.nodes
            node.disk = SimulatedDisk(shape.disk_bytes) if shape.disk_bytes else None
        self.clients = self._clients(",".join(addresses))
        self.restores = RestoreOperator(self.scheduler, self.masters, self.tell, self._begin_anew)

    def _clients(self, masters: str) -> dict[str, ClientMachine]:
        """One client on each node's machine, the others elsewhere: both shared memory and TCP are used."""
        shape = self.script.shape
        return {
            f"client-{i}": ClientMachine(
                f"client-{i}",
                f"node-{i}" if i < shape.nodes else "elsewhere",
                masters,
                self.nodes,
                self.history,
                self.longest_lease_ms,
                self.script.restores,
                shape.tenant_of(i),
                self._thief(shape.tenant_of(i)) if shape.tenants else None,
            )
            for i in range(shape.clients)
        }

    def _thief(self, tenant: str) -> Thief:
        def whose(number: int) -> str | None:
            calls = self.history.calls
            return next(
                (call.tenant for call in calls if call.operation.number == number and call.operation.size_bytes), None
            )

        return Thief(self.nodes, self._longest_ticket_ms() * MS, tenant, whose)

    def _longest_ticket_ms(self) -> int:
        """No ticket is good for longer: its generation, a lease, and the flight of the keepalive that tells of it."""
        flight_ms = sum(sorted(fault.lasts_ms for fault in self.script.faults)[-2:]) + 2_000
        return TICKETS_ROLL_MS + self.longest_lease_ms * 11 // 10 + flight_ms

    @cached_property
    def _placed(self) -> dict[str, Machine]:
        """The machine of each process."""
        return place(self.script.seed, list(self.masters), list(self.nodes), list(self.clients))

    def _longest_lease_ms(self) -> int:
        set_to = [int(fault.other) for fault in self.script.faults if fault.one == "lease_ttl_ms"]
        return max(self.rules.lease_ttl_ms, *set_to, 0)

    def _plan(self, address: str) -> Plan:
        return Plan(self.rules, "simulated", address, LEADER_TTL_MS, snapshot_bytes=4_000, piece_bytes=PIECE_BYTES)

    def _leads(self, machine: MasterMachine, engine: Engine) -> None:
        if self.script.shape.tenants:
            engine.primary.tickets.roll_ms = TICKETS_ROLL_MS
        self.watch_engine(machine, engine)

    @property
    def machines(self) -> dict[str, MasterMachine | NodeMachine | ClientMachine]:
        return {**self.masters, **self.nodes, **self.clients}

    @property
    def now_ms(self) -> int:
        return self.scheduler.now_ns // MS

    def tell(self, line: str, *subjects: str) -> None:
        """Add a line to the story, if one is recorded: to everybody's, or to that of the subjects alone."""
        if self.lines is not None:
            self.lines.append((self.now_ms, line, subjects))

    # Life.

    def new_process(self, name: str) -> ProcessLoop:
        self._lives += 1
        chance = random.Random(f"{name} {self._lives} {self.script.seed}")
        # Two clocks differ by at most the drift that is allowed for, and by any offset.
        rate = 1 + self._clocks.uniform(-0.0045, 0.0045)
        offset_ns = (FAR_SECONDS + self._clocks.randint(1, SPREAD_SECONDS)) * SECOND
        # Loop methods that no code here uses are left out.
        machine, number = self._placed[name], list(self._placed).index(name) + 1
        made = ProcessLoop(  # type: ignore[abstract]
            self.scheduler, self.network, name, chance, rate, offset_ns, machine, number, self._lives
        )
        machine.started(number, made)
        self.clocks.append(made)
        return made

    def start(self, name: str) -> None:
        self.machines[name].start(self.new_process(name))
        self.tell(f"{name} starts")

    def kill(self, name: str) -> None:
        machine = self.machines[name]
        if machine.process is None or machine.process.dead:
            return
        self.tell(f"{name} is killed")
        machine.process.die()
        if isinstance(machine, ClientMachine | NodeMachine):
            machine.died()

    def _restart(self, name: str) -> None:
        process = self.machines[name].process
        if process is None or process.dead:
            self.start(name)

    # The script.

    def play(self, until_ms: int) -> None:
        for name in self.machines:
            self.start(name)
        for operation in self.script.operations:
            self.scheduler.at(operation.at_ms * MS, partial(self._operate, operation))
        for fault in self.script.faults:
            if fault.after_steps:
                self.scheduler.after_steps(fault.after_steps, partial(self._strike, fault))
            else:
                self.scheduler.at(fault.at_ms * MS, partial(self._strike, fault))
        self.scheduler.run_until(until_ms * MS, lambda: self.broken)

    def _operate(self, operation: Operation) -> None:
        self.clients[f"client-{operation.client}"].do(operation)

    def _strike(self, fault: Fault) -> None:
        if fault.one == PRIMARY:
            fault = msgspec.structs.replace(fault, one=self._leading())
        self.tell(f"fault: {fault.kind} {fault.one} {fault.other} for {fault.lasts_ms} ms")
        self.struck(fault, self.now_ms)
        end = self._STRIKES[fault.kind](self, fault)
        if end is not None:
            self.scheduler.after(fault.lasts_ms * MS, end)

    def _leading(self) -> str:
        """The master that leads, or the first one."""
        leading = [
            name for name, machine in self.masters.items() if machine.alive and machine.alive.server.engine is not None
        ]
        return next(iter((*leading, *self.masters)))

    def _serving(self) -> tuple[Engine, ProcessLoop] | None:
        machine = self.masters[self._leading()]
        engine = machine.alive.server.engine if machine.alive is not None else None
        return None if engine is None or machine.process is None else (engine, machine.process)

    def _kill(self, fault: Fault) -> Callable[[], None]:
        self.kill(fault.one)
        return partial(self._restart, fault.one)

    def _pause(self, fault: Fault) -> Callable[[], None] | None:
        process = self.machines[fault.one].process
        if process is None or process.dead or process.paused:
            return None
        process.stop()
        return process.go_on

    def _cut(self, fault: Fault) -> Callable[[], None]:
        self.network.cut(fault.one, fault.other)
        return partial(self.network.heal, fault.one, fault.other)

    def _partition(self, fault: Fault) -> Callable[[], None]:
        others = [name for name in (*self.machines, STORE) if name != fault.one]
        for other in others:
            self.network.cut(fault.one, other)
            self.network.cut(other, fault.one)

        def end() -> None:
            for other in others:
                self.network.heal(fault.one, other)
                self.network.heal(other, fault.one)

        return end

    def _fade(self, fault: Fault) -> Callable[[], None]:
        """Messages to it come later and later, then not at all: the last replies that it got are old."""
        name = fault.one
        for step in range(1, 5):
            late = partial(self.network.late_ns.__setitem__, name, step * FADE_STEP_MS * MS)
            self.scheduler.after((step - 1) * FADE_EVERY_MS * MS, late)

        def gone() -> None:
            end = self._partition(fault)
            self.scheduler.after((fault.lasts_ms - 4 * FADE_EVERY_MS) * MS, end)

        self.scheduler.after(4 * FADE_EVERY_MS * MS, gone)
        return partial(self.network.late_ns.__setitem__, name, 0)

    def _reset(self, fault: Fault) -> None:
        self.network.reset(fault.one, fault.other)

    def _outage(self, fault: Fault) -> Callable[[], None]:
        self.faults.outages += 1

        def end() -> None:
            self.faults.outages -= 1

        return end

    def _share(self, name: str, fault: Fault) -> Callable[[], None]:
        setattr(self.faults, name, fault.share)
        return lambda: setattr(self.faults, name, 0.0)

    def _lost_watches(self, fault: Fault) -> Callable[[], None]:
        self.faults.lost_watches, self.faults.repeated_watches = fault.share, fault.share

        def end() -> None:
            self.faults.lost_watches = self.faults.repeated_watches = 0.0

        return end

    def _late_store(self, fault: Fault) -> Callable[[], None]:
        self.faults.late_ms = int(600 * fault.share)
        return lambda: setattr(self.faults, "late_ms", 0)

    def _slow(self, fault: Fault) -> Callable[[], None]:
        self.network.slowest_ns = int(400 * fault.share) * MS
        return lambda: setattr(self.network, "slowest_ns", self.script.shape.slowest_ms * MS)

    def _refuse(self, fault: Fault) -> Callable[[], None]:
        """A master loses one of its networks: the other masters and a client are refused, and the store is out of
        reach, but it is alive and its other clients reach it. A guess that it is dead is wrong."""
        others = [name for name in (*self.masters, fault.other) if name not in (fault.one, "")]
        for other in others:
            self.network.reset(fault.one, other)
        turned_away = [(other, fault.one) for other in others]
        self.network.refused += turned_away
        unheard = [self._cut(Fault(0, "cut", 0, *way)) for way in ((fault.one, STORE), (STORE, fault.one))]

        def end() -> None:
            for way in turned_away:
                self.network.refused.remove(way)
            for heal in unheard:
                heal()

        return end

    def _slow_threads(self, fault: Fault) -> Callable[[], None] | None:
        """Delay its threads: a copy may come long after it was asked for."""
        process = self.machines[fault.one].process
        if process is None:
            return None
        process.longest_work_ns = int(8_000 * fault.share) * MS
        return lambda: setattr(process, "longest_work_ns", SLOWEST_WORK_NS)

    def _expire(self, fault: Fault) -> None:
        self.store.expire_leader("holdfast")

    def _hand_over(self, fault: Fault) -> None:
        for machine in self.masters.values():
            if machine.alive is not None and machine.alive.server.engine is not None and machine.process is not None:
                self.scheduler.after(0, machine.alive.hand_over, machine.process)

    def _command(self, fault: Fault) -> None:
        """Have the master that believes it leads send a mark."""
        for machine in self.masters.values():
            master, process = machine.alive, machine.process
            if master is not None and process is not None and master.server.engine is not None:
                self.scheduler.after(0, partial(self._send_mark, master.server.engine, fault.one), process)

    def _send_mark(self, engine: Engine, node: str) -> None:
        self._marks += 1
        body = f"{engine.state.epoch} {self._marks}".encode()

        def confirm(error: HoldfastError | None) -> None:
            if error is None:
                self.confirmed.append((node, body))

        # It may no longer lead, or not know the node: then nothing was sent.
        with contextlib.suppress(HoldfastError):
            engine.notify(node, MARK, body, instant.now_ms(), confirm)

    def _spoil(self, fault: Fault) -> None:
        self.masters[fault.one].disk.spoil(all_of_them=fault.share == 1)

    def _harm_files(self, fault: Fault) -> None:
        disk = self.nodes[fault.one].disk
        if disk is not None:
            chance = random.Random(f"{fault.kind} {fault.at_ms} {self.script.seed}")
            count = (disk.lose if fault.kind == "lose_files" else disk.spoil)(fault.share, chance)
            self.tell(f"{count} files of {fault.one} are {'lost' if fault.kind == 'lose_files' else 'spoiled'}")

    def _slow_disk(self, fault: Fault) -> Callable[[], None] | None:
        disk = self.nodes[fault.one].disk
        if disk is None:
            return None
        disk.late_seconds = 4 * fault.share
        return lambda: setattr(disk, "late_seconds", 0.0)

    def _take_snapshots(self, fault: Fault) -> None:
        """Have every master write a snapshot, as an operator would."""
        for machine in self.masters.values():
            if machine.alive is not None and machine.process is not None:
                machine.process.spawn(partial(_asked_for_a_snapshot, machine.alive))

    def _wipe(self, fault: Fault) -> Callable[[], None]:
        """Empty the store; when the fault ends, the operator begins a new history, or restores the old one from the
        source in `other`."""
        self.restores.store_lost(self.stored_history())
        if fault.one:
            for name in self.masters:
                self.kill(name)
                self.scheduler.after(HEAL_MS * MS, partial(self._restart, name))
        self.asked = True
        self.wiped()
        self.store.wipe("holdfast")
        return partial(self.restores.order, fault.other, stubborn=True) if fault.other else self._begin_anew

    def _restore(self, fault: Fault) -> None:
        """The operator gives the command once more, or too early."""
        self.restores.order(fault.other)

    def history_may_begin(self) -> bool:
        """May a history begin? By the operator's decision, or because the leader knows of no other."""
        record = self.store.only.record
        leads = [one for one in self.masters.values() if record is not None and one.plan.address == record.address]
        return not self.asked or not any(one.disk.files for one in leads)

    def _begin_anew(self) -> None:
        """Have the operator order the first waiting master to begin, again and again until a history has begun."""
        if self.store.only.last:
            return
        self.asked = False
        for machine in self.masters.values():
            histories = machine.alive.histories if machine.alive is not None else None
            if histories is not None and histories.waits:
                self.tell(f"the operator has {machine.name} begin a new history")
                self.scheduler.after(0, partial(histories.tell, Word()), machine.process)
                break
        self.scheduler.after(OPERATOR_LOOKS_MS * MS, self._begin_anew)

    _STRIKES: dict[str, Callable[[World, Fault], Callable[[], None] | None]] = {
        "kill_master": _kill, "kill_node": _kill, "kill_client": _kill,
        "pause_master": _pause, "pause_node": _pause, "pause_client": _pause,
        "cut": _cut, "partition": _partition, "reset": _reset, "store_outage": _outage,
        "lost_requests": lambda world, fault: world._share("lost_requests", fault),
        "lost_answers": lambda world, fault: world._share("lost_answers", fault),
        "lost_watches": _lost_watches, "late_store": _late_store, "slow_network": _slow,
        "expire_leader": _expire, "hand_over": _hand_over, "spoil_snapshot": _spoil, "command": _command,
        "drain": lambda world, fault: world.operators.drain(fault),
        "settings": lambda world, fault: world.operators.change(fault),
        "refuse": _refuse, "slow_threads": _slow_threads, "fade": _fade,
        "lose_files": _harm_files, "spoil_files": _harm_files, "slow_disk": _slow_disk,
        "take_snapshots": _take_snapshots, "wipe_store": _wipe, "restore": _restore,
        "quotas": lambda world, fault: world.operators.change_quotas(fault),
    }  # fmt: skip

    def end(self) -> None:
        for machine in self.machines.values():
            if machine.process is not None:
                machine.process.dead = True
        for node in self.nodes.values():
            node.end()


async def _asked_for_a_snapshot(master: Master) -> None:
    with contextlib.suppress(HoldfastError):  # Its term may end meanwhile; the caller gets the error.
        await master.snapshot()


@contextlib.contextmanager
def undisturbed() -> Iterator[None]:
    """Keep this process out of the run: no log lines, no garbage collector, and its own clock again afterwards."""
    collecting = gc.isenabled()
    gc.disable()
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
    logging.disable(logging.CRITICAL)
    try:
        yield
    finally:
        asyncio._set_running_loop(None)
        instant.read_from(instant.SYSTEM_CLOCK)
        entropy.draw_from(entropy.SYSTEM_CHANCE)
        witness.see_through(witness.KERNEL)
        # The world is full of reference cycles, so collect before the collector is enabled, or it would traverse them
        # twice. Log lines of processes that are dropped here still belong to the run.
        gc.collect()
        logging.disable(logging.NOTSET)
        structlog.reset_defaults()
        if collecting:
            gc.enable()
