"""`holdfast demo`: what the project promises, on this machine, in a few seconds.

It starts two masters and a node of its own, writes under load, kills the primary with SIGKILL in the middle, and
then reads every acknowledged object and compares every byte. The exit code is the verdict. With `--engine` a language
model is the load: package `engine_demo`.
"""

from __future__ import annotations

import os
import secrets
import signal
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from threading import Event
from typing import TYPE_CHECKING, Any

from holdfast.cli.cluster.masters import MasterSeen, primary_of, survey
from holdfast.cli.demo.screen import Screen
from holdfast.cli.exit_codes import FAILED, INTERRUPTED, OK
from holdfast.cli.load import Load, Verified, longest_gap_s, verify
from holdfast.cli.options import takes
from holdfast.cli.output import Output, human_bytes
from holdfast.cli.processes.fleet import Fleet
from holdfast.cli.processes.local_cluster import ClusterWanted, LocalCluster
from holdfast.cli.processes.up import on_signals
from holdfast.errors import Refused, TryAgain
from holdfast.ids import extent_of
from holdfast.instant import now_seconds
from holdfast.node.host_capacity import available_memory, check_memory
from holdfast.settings import PREFIX, DemoSettings

if TYPE_CHECKING:
    from holdfast.client.cache import Cache

LOOK_EVERY_S = 0.1
PUT_TIMEOUT_S = 30.0
PATIENCE_S = 90.0
"""How much longer than asked for the load may take before the demo gives up."""
EQUAL_WITHIN_S = 15.0
HEADROOM = 1.4
"""So that nothing is evicted: an evicted object would look like a lost one."""
SPARE_BYTES = 64 << 20
CLIENT_BYTES = 16 << 20


@dataclass(slots=True)
class Story:
    """The events of the demo so far."""

    began: float = field(default_factory=now_seconds)
    events: list[tuple[float, str]] = field(default_factory=list)
    masters: list[MasterSeen] = field(default_factory=list)
    killed: str = ""
    killed_at: float = 0.0
    new_primary: str = ""
    digests_equal: bool | None = None


@takes(DemoSettings)
def demo(settings: DemoSettings, out: Output) -> int:
    """Start a cluster, write objects, kill the primary in the middle, and verify every acknowledged object.

    With --engine: a small language model on the CPU, and its time to the first token with and without holdfast.
    """
    if settings.engine:
        from holdfast.cli.engine_demo.command import run

        return run(settings, out)
    size_bytes = memory_for(settings)
    check_memory(size_bytes, available_memory())
    check_own_cluster(settings.coordination)
    stop = Event()
    with on_signals(stop), tempfile.TemporaryDirectory(prefix="holdfast-demo-") as directory:
        performance = Performance(settings, wanted_by(settings, Path(directory), size_bytes), stop, Screen(out.as_json))
        cluster, fleet = performance.cluster, performance.cluster.fleet
        try:
            with performance.screen:
                facts = performance.run()
            report(out, settings, facts)
            if settings.keep:
                out.note(f"the cluster stays up at {cluster.address} until Ctrl-C")
                fleet.watch()
            return OK if facts["ok"] else FAILED
        except KeyboardInterrupt:
            pass
        finally:
            performance.load.stop(0.0)
            fleet.end()
            performance.load.stop(5.0)
    out.note("interrupted; the demo's processes have ended, and its directory is removed")
    return INTERRUPTED


class Performance:
    """The demo from the start of the cluster to the verdict. The caller must end the fleet."""

    def __init__(self, settings: DemoSettings, wanted: ClusterWanted, stop: Event, screen: Screen) -> None:
        self.settings = settings
        self.cluster = LocalCluster(Fleet(stop, self.tell), wanted)
        self.stop = stop
        self.screen = screen
        self.story = Story()
        self.load = Load(self.connect, settings.objects, settings.value_size, settings.clients, settings.seconds)

    def connect(self) -> Cache:
        import holdfast

        return holdfast.connect(self.cluster.address, timeout=PUT_TIMEOUT_S)

    def tell(self, text: str) -> None:
        self.story.events.append((now_seconds() - self.story.began, text))
        self.screen.tell(*self.story.events[-1])

    def run(self) -> dict[str, Any]:
        primary = self.cluster.start(self.stop)
        self.tell(f"two masters and a node run; {primary.name} is the primary")
        self.load.start()
        self.tell(f"{self.settings.clients} clients write {self.settings.objects:,} objects")
        give_up_at = now_seconds() + self.settings.seconds + PATIENCE_S
        while self.load.running:
            self.look()
            if not self.story.killed and 2 * len(self.load.acknowledged) >= self.settings.objects:
                self.kill_primary()
            if now_seconds() > give_up_at:
                raise TryAgain(
                    f"the load did not end in time; {self.load.failed} puts failed. Is the machine overloaded?"
                )
            self.wait()
        if not self.story.killed:
            raise TryAgain(f"too few puts were acknowledged to kill the primary: {'; '.join(self.load.faults)}")
        self.tell(f"the load has ended: {len(self.load.acknowledged):,} puts were acknowledged")
        self.await_equal_digests()
        with self.connect() as cache:
            verified = verify(cache, [key for _, key in self.load.acknowledged], self.settings.value_size, self.stop)
        self.tell(f"verified: {verified.right:,} right, {len(verified.lost)} lost, {len(verified.wrong)} wrong")
        return self.facts(verified)

    def wait(self) -> None:
        if self.stop.wait(LOOK_EVERY_S):
            raise KeyboardInterrupt

    def look(self) -> None:
        for child, _ in [*self.cluster.masters, *self.cluster.nodes]:
            self.cluster.fleet.look_after(child, now_seconds())
        self.story.masters = survey(self.cluster.addresses, "", seconds=1.0)
        primary = primary_of(self.story.masters)
        if self.story.killed and not self.story.new_primary and primary is not None:
            self.story.new_primary = primary.name
            self.tell(f"{primary.name} is the primary now, in epoch {primary.epoch}")
        self.screen.show(self.story.masters, self.load)

    def kill_primary(self) -> None:
        primary = primary_of(self.story.masters)
        if primary is None:
            return
        child = self.cluster.master_named(primary.name)
        self.story.killed, self.story.killed_at = primary.name, now_seconds()
        os.kill(child.pid, signal.SIGKILL)
        self.tell(f"{primary.name}, the primary, was killed with SIGKILL (process {child.pid})")

    def await_equal_digests(self) -> None:
        """The killed one is back and holds the same catalogue as the other, record for record (I5)."""
        give_up_at = now_seconds() + EQUAL_WITHIN_S
        while now_seconds() < give_up_at:
            self.look()
            states = [one.status for one in self.story.masters if one.status is not None]
            if len(states) == self.cluster.wanted.masters and len({one.applied_index for one in states}) == 1:
                self.story.digests_equal = len({one.digest for one in states}) == 1
                same = "the same" if self.story.digests_equal else "NOT the same"
                self.tell(f"{self.story.killed} is back, and both masters hold {same} catalogue")
                return
            self.wait()
        self.tell("the masters did not come to hold the same records in time, so their digests were not compared")

    def facts(self, verified: Verified) -> dict[str, Any]:
        times = [when for when, _ in self.load.acknowledged]
        outage_s = longest_gap_s(times, self.story.killed_at)
        after = sum(when > self.story.killed_at for when in times)
        return {
            "ok": verified.ok and after > 0 and self.story.digests_equal is not False,
            "acknowledged": len(times),
            "acknowledged_after_kill": after,
            "failed_puts": self.load.failed,
            "faults": self.load.faults,
            "verified": verified.right,
            "lost": len(verified.lost),
            "wrong": len(verified.wrong),
            "outage_ms": round(outage_s * 1000, 1) if outage_s is not None else None,
            "slowest_put_ms": round(self.load.slowest_s * 1000, 1),
            "killed": self.story.killed,
            "new_primary": self.story.new_primary,
            "digests_equal": self.story.digests_equal,
            "address": self.cluster.address,
            "events": [{"at_ms": round(at * 1000), "text": text} for at, text in self.story.events],
        }


def memory_for(settings: DemoSettings) -> int:
    stored = settings.objects * extent_of(settings.value_size)
    return int(stored * HEADROOM) + settings.clients * CLIENT_BYTES + SPARE_BYTES


def check_own_cluster(url: str) -> None:
    """Killing a primary is for a cluster that nobody else uses."""
    from holdfast.coordination.urls import parse_location

    name = "holdfast-demo-unnamed"
    if url and parse_location(url, name).cluster != name:
        raise Refused(f"{url} names a cluster, and demo makes one of its own; nothing was started. Leave the name out")


def wanted_by(settings: DemoSettings, directory: Path, size_bytes: int) -> ClusterWanted:
    return ClusterWanted(
        data_dir=directory,
        run_dir=directory,
        size_bytes=size_bytes,
        coordination=settings.coordination,
        cluster=f"demo-{secrets.token_hex(4)}",
        arguments=("--log-level", "error"),
        # The user's settings for their own cluster are not meant for this one; empty counts as unset.
        variables={name: "" for name in os.environ if name.startswith(PREFIX)},
    )


def report(out: Output, settings: DemoSettings, facts: dict[str, Any]) -> None:
    if out.as_json:
        out.data(facts)
        return
    outage = "no put was acknowledged afterwards" if facts["outage_ms"] is None else f"{facts['outage_ms']:g} ms"
    out.facts(
        [
            ("objects", f"{facts['acknowledged']:,} acknowledged, {human_bytes(settings.value_size)} each"),
            ("killed", f"{facts['killed']}; {facts['new_primary'] or 'nobody'} took over"),
            ("outage", f"{outage} (the longest time between two acknowledged puts)"),
            ("slowest put", f"{facts['slowest_put_ms']:g} ms"),
            ("failed puts", facts["failed_puts"]),
            ("digests", {True: "equal", False: "NOT EQUAL", None: "not compared"}[facts["digests_equal"]]),
            ("verified", f"{facts['verified']:,} objects, byte for byte"),
        ]
    )
    for fault in facts["faults"]:
        out.note(fault)
    out.line(f"{facts['lost']} lost, {facts['wrong']} wrong")
