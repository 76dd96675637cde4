"""A cluster on this machine as children of this process: the masters first, then, under a primary, the nodes.

Any free port becomes a fixed one as soon as it is known: a master that is started again must be found where it was.
The masters share a log through coordination, by default one file beside their directories, so that a cluster which
is started again on the same directory goes on with it; what its nodes lent before is gone, and the masters drop it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from threading import Event
from typing import Any
from urllib.parse import quote

from holdfast.addresses import split_address
from holdfast.cli.cluster.masters import MasterSeen, await_primary, primary_of, survey
from holdfast.cli.processes.fleet import Child, Fleet
from holdfast.cli.processes.ports import further_places, reachable
from holdfast.coordination.urls import parse_location, redacted
from holdfast.errors import Refused, TryAgain
from holdfast.instant import now_seconds
from holdfast.messages.requests import Status

START_WITHIN_S = 60.0
PRIMARY_WITHIN_S = 30.0
TOUCHED_BYTES_A_SECOND = 256 << 20
"""The rate at which even a slow, busy machine touches memory."""


@dataclass(frozen=True, slots=True)
class ClusterWanted:
    """The cluster to start."""

    data_dir: Path
    run_dir: Path
    size_bytes: int
    listen: str = "127.0.0.1:0"
    http: str = "127.0.0.1:0"
    masters: int = 2
    nodes: int = 1
    coordination: str = ""
    cluster: str = "holdfast"
    token: str = ""
    arguments: tuple[str, ...] = ()
    """For every process."""
    master_arguments: tuple[str, ...] = ()
    node_arguments: tuple[str, ...] = ()
    variables: Mapping[str, str] = field(default_factory=dict)
    new_history: bool = False
    """Said to the masters at their first start, and not when they are started again."""

    @property
    def environment(self) -> dict[str, str]:
        # The token was read from its file, where it came from one; an empty variable counts as none.
        shown = {"HOLDFAST_TOKEN": self.token, "HOLDFAST_TOKEN_FILE": ""} if self.token else {}
        return {**self.variables, **shown}

    @property
    def log(self) -> str:
        return self.coordination or f"sqlite://{quote(str((self.data_dir / 'cluster.db').absolute()))}"


@dataclass(slots=True)
class LocalCluster:
    fleet: Fleet
    wanted: ClusterWanted
    masters: list[tuple[Child, dict[str, Any]]] = field(default_factory=list)
    """Each with what it said when it served."""
    nodes: list[tuple[Child, dict[str, Any]]] = field(default_factory=list)

    @property
    def addresses(self) -> list[str]:
        return [reachable(facts["address"]) for _, facts in self.masters]

    @property
    def address(self) -> str:
        """For clients and nodes: any of the masters names the primary."""
        return ",".join(self.addresses)

    def start(self, stop: Event) -> Status:
        """Start everything; the primary."""
        taken = {split_address(place)[1] for place in (self.wanted.listen, self.wanted.http)}
        self._start_masters(taken)
        primary = await_primary(self._survey, lambda _: True, now_seconds() + PRIMARY_WITHIN_S, stop)
        if primary is None:
            raise TryAgain(
                f"no master became primary within {PRIMARY_WITHIN_S:g} s; everything was stopped. "
                f"Does {redacted(self.wanted.log)} answer?"
            )
        self._start_nodes(taken)
        return primary

    def _survey(self) -> list[MasterSeen]:
        """How the masters stand. Refused, at once, if they wait for the operator: nobody will lead before that."""
        seen = survey(self.addresses, self.wanted.token)
        waiting = next((one.status for one in seen if one.status is not None and one.status.waits), None)
        if waiting is not None and primary_of(seen) is None:
            raise Refused(
                f"no history begins: {waiting.name} waits for the operator, because {waiting.waits}. "
                "Everything was stopped; nothing was changed"
            )
        return seen

    def _start_masters(self, taken: set[int]) -> None:
        wanted = self.wanted
        # The ports right after the first master's are the nodes'.
        listens = [wanted.listen, *further_places(wanted.listen, wanted.masters - 1, 1 + wanted.nodes, taken)]
        https = [wanted.http, *further_places(wanted.http, wanted.masters - 1, 1, taken)]
        children, same = [], []
        for number, (listen, http) in enumerate(zip(listens, https, strict=True), 1):
            name = f"master-{number}"
            arguments = ["master", "--name", name, "--data-dir", str(wanted.data_dir / name)]
            cluster = parse_location(wanted.log, wanted.cluster).cluster
            arguments += ["--cluster", cluster, *wanted.arguments]
            arguments += wanted.master_arguments
            same.append(arguments)
            placed = [*arguments, "--listen", listen, "--http", http]
            placed += ["--new-history"] if wanted.new_history else []
            # In the environment, and not among the arguments: everybody can read those, and a URL may have a password.
            environment = {**wanted.environment, "HOLDFAST_COORDINATION": wanted.log}
            children.append(Child(name, placed, wanted.run_dir / f"{name}.json", environment))
        for child, arguments, facts in zip(children, same, self.fleet.launch(*children), strict=True):
            child.arguments = [*arguments, "--listen", facts["address"], "--http", facts["http"]]
            self.masters.append((child, facts))

    def _start_nodes(self, taken: set[int]) -> None:
        wanted = self.wanted
        children = []
        for number, listen in enumerate(further_places(wanted.listen, wanted.nodes, 1, taken), 1):
            name = f"node-{number}"
            place = ["--listen", listen, "--address", self.address, "--size", str(wanted.size_bytes)]
            # HOLDFAST_HTTP, if there is one, is the first master's.
            arguments = ["node", "--name", name, *place, "--http", "", *wanted.arguments, *wanted.node_arguments]
            children.append(Child(name, arguments, wanted.run_dir / f"{name}.json", wanted.environment))
        # A node touches its memory before it lends it, so that no put ever waits for a page.
        within_s = START_WITHIN_S + wanted.nodes * wanted.size_bytes / TOUCHED_BYTES_A_SECOND
        self.nodes = list(zip(children, self.fleet.launch(*children, within_s=within_s), strict=True))

    def master_named(self, name: str) -> Child:
        return next(child for child, _ in self.masters if child.name == name)
