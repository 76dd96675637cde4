"""The operator who restores a lost history: asks the masters what they hold, chooses one, and gives the order.

As `holdfast restore` does, with the masters' own replies: it takes the master that holds the most records, or a
snapshot that was kept from before. A stopped or dead master does not reply; then it chooses among the others. The order
may be refused, lost with its master or broken off: a stubborn operator gives it again.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial

from holdfast.master.restoration import MEMORY_OF_PROCESS
from holdfast.messages.of_masters import (
    DescribeHistories,
    HistoriesDescribed,
    HistoryFound,
    OfferCatalogue,
    RestoreHistory,
)
from holdfast.messages.shapes import Message
from holdfast.replication.snapshot_store import parse_name
from holdfast.replication.snapshots import CorruptSnapshot, found_in
from holdfast.simulation.kernel.scheduler import MS, Scheduler
from holdfast.simulation.world.masters import MasterMachine

ANSWERS_NS = 300 * MS
AGAIN_NS = 2_500 * MS
"""Longer than a restore takes if nothing is wrong, so that one under way is not ordered again all the time."""
MOST_TRIES = 60
FRUITLESS = 6
"""After this many rounds in which no master holds anything of the history, it is given up for lost."""
KEPT = "kept"
"""Restore from a snapshot that the operator kept, instead of the newest that masters hold."""


@dataclass(slots=True)
class RestoreOperator:
    scheduler: Scheduler
    masters: Mapping[str, MasterMachine]
    tell: Callable[[str], None]
    give_up: Callable[[], None] = lambda: None
    """Called when no master holds anything of the history: begins an empty one."""
    lost: int = 0
    """The history that the store lost last."""
    kept: bytes = b""
    """A snapshot of it, older than its log."""
    insists: bool = False
    """A stubborn operator will give the order again."""
    _kept_log_id: int = 0
    _answers: dict[str, HistoriesDescribed] = field(default_factory=dict)

    def store_lost(self, log_id: int) -> None:
        """Remember which history it was, and keep a copy of its last snapshot but one."""
        if not log_id:
            return
        self.lost = log_id
        found = [
            (named[1], content)
            for machine in self.masters.values()
            for name, content in machine.disk.files.items()
            if (named := parse_name(name)) is not None and named[0] == log_id and _is_sound(content)
        ]
        if found:
            newest = sorted(dict(found).items())[-2:]
            self.kept, self._kept_log_id = newest[0][1], log_id

    @property
    def is_restored(self) -> bool:
        """Does a master serve a history that continues the lost one?"""
        engines = [one.alive.server.engine for one in self.masters.values() if one.alive is not None]
        return any(engine is not None and self.lost in engine.state.continues for engine in engines)

    def order(self, source: str, stubborn: bool = False, tries: int = 0, fruitless: int = 0) -> None:
        """Give the command; a stubborn operator repeats it until the history is served again."""
        self.insists = False
        if not self.lost or (stubborn and (self.is_restored or tries >= MOST_TRIES)):
            if stubborn and not self.lost:
                self.give_up()
            return
        if stubborn and fruitless >= FRUITLESS:
            self.give_up()
            return
        self.insists = stubborn
        answers: dict[str, HistoriesDescribed] = {}
        self._answers = answers
        for name, machine in self.masters.items():
            if machine.alive is not None and machine.process is not None:
                ask = partial(_ask, machine, DescribeHistories(), partial(self._described, answers, name))
                self.scheduler.after(0, ask, machine.process)
        self.scheduler.after(ANSWERS_NS, partial(self._choose, answers, source, stubborn, tries, fruitless))

    def _described(self, answers: dict[str, HistoriesDescribed], name: str, answer: Message) -> None:
        if isinstance(answer, HistoriesDescribed):
            answers[name] = answer

    def _choose(
        self, answers: dict[str, HistoriesDescribed], source: str, stubborn: bool, tries: int, fruitless: int
    ) -> None:
        found = [
            ((one.epoch, one.index), one.where == MEMORY_OF_PROCESS, name, one)
            for name, described in answers.items()
            for one in described.found
            if one.log_id == self.lost != described.log_id
        ]
        if source == KEPT and self.kept and self._kept_log_id == self.lost and answers:
            self._restore(self._leading(answers) or min(answers), None)
            fruitless = 0
        elif found:
            _, _, name, newest = max(found, key=lambda one: one[:3])
            self._restore(name, newest)
            fruitless = 0
        if stubborn:
            again = partial(self.order, source, True, tries + 1, fruitless + (not found and bool(answers)))
            self.scheduler.after(AGAIN_NS, again)

    def _leading(self, answers: Mapping[str, HistoriesDescribed]) -> str:
        return next((name for name, described in answers.items() if described.role == "primary"), "")

    def _restore(self, name: str, source: HistoryFound | None) -> None:
        """Order this master to restore; without a source, from the kept snapshot. A file can also be sent to the
        leader."""
        content = self.kept if source is None else b""
        leading = self._leading(self._answers)
        if source is not None and leading not in ("", name) and source.where != MEMORY_OF_PROCESS:
            content = self.masters[name].disk.files.get(source.where, b"")
            name = leading if content else name
        where = "" if content or source is None else source.where
        machine = self.masters[name]
        process = machine.process
        if process is None or machine.alive is None:
            return
        self.tell(f"the operator has {name} restore history {self.lost:x} from {where or 'a snapshot that was kept'}")
        order = RestoreHistory(self.lost, where, replace=True)
        if content:
            offer = partial(_ask, machine, OfferCatalogue(0, content), lambda answer: None)
            self.scheduler.after(0, offer, process)
        self.scheduler.after(0, partial(_ask, machine, order, partial(self._answered, name)), process)

    def _answered(self, name: str, answer: Message) -> None:
        self.tell(f"{name} answers the operator: {answer}")


def _is_sound(content: bytes) -> bool:
    try:
        found_in(content, KEPT)
    except CorruptSnapshot:
        return False
    return True


def _ask(machine: MasterMachine, request: Message, answer: Callable[[Message], None]) -> None:
    if machine.alive is not None:
        machine.alive.server.views[type(request)](request, answer)
