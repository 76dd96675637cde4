"""Checks of sessions by the followers' own clocks, which no master can see."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from holdfast.messages.records import SessionClosed, SessionEnd
from holdfast.session.lease import Standing
from holdfast.simulation.checks.log_checks import Report
from holdfast.simulation.kernel.scheduler import MS
from holdfast.simulation.world.nodes import NodeMachine, ServedNode


@dataclass(slots=True)
class SessionChecks:
    nodes: Mapping[str, NodeMachine]
    confirmed: list[tuple[str, bytes]]
    report: Report
    _followed: dict[str, tuple[ServedNode | None, int, int]] = field(default_factory=dict)
    """By node: (its life, the history and the epoch that it followed last)."""

    def closed(self, record: SessionClosed) -> None:
        """I4: a session that a master calls expired has expired by its follower's clock."""
        if record.cause is not SessionEnd.EXPIRED:
            return
        for name, node in self.nodes.items():
            served, process = node.alive, node.process
            if served is None or process is None or served.life.follower.session != record.session:
                continue
            lease = served.life.follower.lease
            standing = lease.standing(process.now_ns() // MS) if lease is not None else Standing.EXPIRED
            if standing is not Standing.EXPIRED:
                self.report("I4", f"the session of {name} was called expired while it is {standing.value} there", name)

    def look(self) -> None:
        for name, node in self.nodes.items():
            for mark, count in node.marks.items():
                if count > 1:
                    self.report("I6", f"{name} took command {mark.decode()} {count} times", name)
            for mark in node.stale:
                self.report("I3", f"{name} obeyed {mark.decode()}, of an epoch that was over", name)
            served = node.alive
            if served is not None:
                history, epoch = served.life.follower.history, served.life.follower.epoch
                life, followed, before = self._followed.get(name, (None, 0, 0))
                if life is served and followed == history and epoch < before:
                    self.report("I6", f"{name} went back from epoch {before} to {epoch}", name)
                self._followed[name] = (served, history, epoch)
        for name, mark in self.confirmed:
            if not self.nodes[name].marks[mark]:
                self.report("I6", f"command {mark.decode()} was confirmed, and {name} never took it", name)
