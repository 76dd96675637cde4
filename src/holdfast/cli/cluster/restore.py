"""`restore`: bring back a history that the coordination store has lost, with the catalogue that somebody still has.

The source is a running master's own memory (which knows the latest), a snapshot file, or the place where masters share
snapshots. Nodes that still hold the memory keep it, and verify it; this waits for them and says what came of it.
"""

from __future__ import annotations

import asyncio
import time
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from holdfast.cli import connection
from holdfast.cli.cluster.masters import ask_one, given_addresses
from holdfast.cli.options import takes
from holdfast.cli.output import Output, human_bytes, plain
from holdfast.errors import BadValue, DeadlineExceeded, HoldfastError, Refused, TryAgain
from holdfast.instant import now_seconds
from holdfast.messages.of_masters import (
    DescribeHistories,
    HistoriesDescribed,
    HistoryFound,
    OfferCatalogue,
    RestoreHistory,
)
from holdfast.messages.requests import Done, GetStatus, Status
from holdfast.settings import ClientSettings
from holdfast.wire.codec import expect

LOOK_SECONDS = 5.0
LOOK_EVERY_SECONDS = 0.1
OFFER_BYTES = 4 << 20
"""The size of a piece; a frame holds at most 16 MiB."""
MASTERS = "masters/"


class Ambiguous(Refused):
    """There is more than one history that could be meant; nothing was changed."""

    code = "ambiguous"


@dataclass(frozen=True, slots=True)
class RestoreSource:
    """The history to restore, and the master that does it."""

    found: HistoryFound
    address: str
    name: str
    content: bytes = b""
    """Of a snapshot that no master has."""

    @property
    def reaches(self) -> tuple[int, int]:
        """How far it goes: the one with the larger epoch is newer, however many records the other holds."""
        return self.found.epoch, self.found.index

    def __str__(self) -> str:
        where = "its own memory" if self.found.where == "memory" else self.found.where
        return f"history {self.found.log_id:016x} through record {self.found.index:,}, from {where} of {self.name}"


@takes(ClientSettings)
def restore(
    settings: ClientSettings,
    out: Output,
    source: Annotated[
        str,
        typer.Option("--from", metavar="FILE|URL|ADDRESS", help="A snapshot, the place of shared ones, or a master."),
    ] = "",
    history: Annotated[str, typer.Option("--history", help="Which history, where several are known.")] = "",
    cluster: Annotated[
        str, typer.Option("--cluster", help="Whose snapshots, in a shared place, if not this one's.")
    ] = "",
    wait: Annotated[bool, typer.Option("--wait/--no-wait", help="Watch until nodes have verified memory.")] = True,
    yes: Annotated[bool, typer.Option("--yes", help="Restore even if something newer is lost by it.")] = False,
) -> None:
    """Begin a new history with the catalogue of one that the coordination store has lost. Nodes keep their memory."""
    connection.use_certificates(settings)
    deadline = now_seconds() + settings.timeout
    masters, faults = describe(addresses_of(settings, source), settings.token)
    if not masters:
        raise TryAgain(
            f"no master answers; nothing was changed. Name those that run: --address HOST:PORT,HOST:PORT ({faults})"
        )
    wanted = int(history, 16) if history else 0
    if "://" in source and not cluster:
        cluster = ask_one(next(iter(masters)), settings.token, GetStatus(), Status, deadline).cluster
    chosen = choose(masters, source, wanted, cluster)
    replace = check_losses(chosen, masters, yes)
    out.note(f"restoring {chosen}")
    if chosen.content:
        offer(chosen, settings.token, deadline)
    order = RestoreHistory(chosen.found.log_id, "" if chosen.content else chosen.found.where, replace)
    before = masters[chosen.address].log_id
    ask_one(chosen.address, settings.token, order, Done, deadline)
    show(out, chosen, await_restored(out, chosen, before, settings.token, deadline, wait))


def addresses_of(settings: ClientSettings, source: str) -> list[str]:
    given = given_addresses(settings.address)
    if "://" in settings.address:
        given = asyncio.run(announced(settings.address))
    if source and "://" not in source and not Path(source).exists():
        given = [source, *given]
    return list(dict.fromkeys(given))


async def announced(url: str) -> list[str]:
    """The masters that run, as they say in coordination."""
    from holdfast.coordination.backends import open_coordination

    coordination = await open_coordination(url, "", 5_000)
    try:
        return sorted(value.decode(errors="replace") for value in (await coordination.list(MASTERS)).values())
    finally:
        await coordination.close()


def describe(addresses: list[str], token: str) -> tuple[dict[str, HistoriesDescribed], str]:
    """The histories that each master knows, by its address; and why others did not answer."""
    found: dict[str, HistoriesDescribed] = {}
    faults: list[str] = []
    for address in addresses:
        within = now_seconds() + LOOK_SECONDS
        try:
            found[address] = ask_one(address, token, DescribeHistories(), HistoriesDescribed, within)
        except HoldfastError as error:
            faults.append(f"{address}: {error}")
    return found, "; ".join(faults)


def choose(masters: dict[str, HistoriesDescribed], source: str, wanted: int, cluster: str) -> RestoreSource:
    """The newest of the history that is meant."""
    if source and source not in masters:
        return from_snapshot(masters, source, wanted, cluster)
    asked = {source: masters[source]} if source else masters
    found = [
        RestoreSource(one, address, described.name)
        for address, described in asked.items()
        for one in described.found
        if one.log_id != described.log_id
    ]
    chosen = newest(found, wanted)
    if chosen is None:
        raise BadValue("no master knows of a history but what it serves; nothing was changed. Give one: --from FILE")
    return chosen


def newest(found: list[RestoreSource], wanted: int) -> RestoreSource | None:
    histories = {one.found.log_id for one in found}
    if wanted:
        found = [one for one in found if one.found.log_id == wanted]
    elif len(histories) > 1:
        named = "; ".join(str(one) for one in sorted(found, key=lambda one: one.found.index, reverse=True))
        raise Ambiguous(f"several histories are known ({named}); nothing was changed. Say which: --history ID")
    # A primary that was deposed may hold records that are in no log, but none of the epochs after its own. Where both
    # know as much, the memory is taken, which may know of puts that were not durable.
    return max(found, key=lambda one: (*one.reaches, one.found.where == "memory"), default=None)


def from_snapshot(masters: dict[str, HistoriesDescribed], source: str, wanted: int, cluster: str) -> RestoreSource:
    from holdfast.replication.depots import open_depot
    from holdfast.replication.snapshots import CorruptSnapshot, found_in

    leading = [address for address, one in masters.items() if one.role == "primary"]
    address = (leading or list(masters))[0]
    contents = [(source, Path(source).read_bytes())] if "://" not in source else []
    if not contents:
        depot = open_depot(source, cluster)
        contents = [(name, depot.get(name)) for name in depot.names() if name.endswith(".hfs")]
    found: list[RestoreSource] = []
    faults: list[str] = []
    for name, content in contents:
        try:
            found.append(RestoreSource(found_in(content, name), address, masters[address].name, content))
        except CorruptSnapshot as error:
            faults.append(f"{name}: {error}")
    chosen = newest(found, wanted)
    if chosen is None:
        raise BadValue(f"{source} has no sound snapshot; nothing was changed. {'; '.join(faults)}")
    return chosen


def check_losses(chosen: RestoreSource, masters: dict[str, HistoriesDescribed], yes: bool) -> bool:
    """Ask before something newer, or something that is served, is lost. Whether what is served may be replaced."""
    losses = [
        f"{described.name} holds it through record {one.index:,}, and this is through {chosen.found.index:,}"
        for described in masters.values()
        for one in described.found
        if one.log_id == chosen.found.log_id and (one.epoch, one.index) > chosen.reaches
    ]
    losses += [
        f"{described.name} serves {described.objects:,} objects of history {described.log_id:016x}, which would be lost"
        for described in masters.values()
        if described.role == "primary" and described.objects
    ]
    if losses and not yes:
        typer.confirm(f"{'; '.join(losses)}. Restore all the same?", abort=True, err=True)
    return bool(losses)


def offer(chosen: RestoreSource, token: str, deadline: float) -> None:
    with closing(connection.open_channel(chosen.address, token, deadline)) as channel:
        for start in range(0, len(chosen.content), OFFER_BYTES):
            piece = OfferCatalogue(start, chosen.content[start : start + OFFER_BYTES])
            expect(channel.call(piece, deadline), Done)


def await_restored(
    out: Output, chosen: RestoreSource, before: int, token: str, deadline: float, for_nodes: bool
) -> HistoriesDescribed:
    """Wait until it is served and, with `for_nodes`, every node has verified its memory; or until the deadline."""
    said = ""
    described: HistoriesDescribed | None = None
    while now_seconds() < deadline:
        try:
            described = ask_one(chosen.address, token, DescribeHistories(), HistoriesDescribed, deadline)
        except (TryAgain, DeadlineExceeded):
            # A busy master may not answer before the time is up; what it said last is reported then.
            time.sleep(LOOK_EVERY_SECONDS)
            continue
        if described.failure:
            raise TryAgain(f"the restore failed: {described.failure}. The history before it goes on, if there was one")
        serves = described.role == "primary" and described.older == chosen.found.log_id and described.log_id != before
        if serves and not (for_nodes and described.unverified_nodes):
            return described
        doing = described.restoring or "waiting for the term"
        if serves:
            doing = f"served; {described.unverified:,} objects to verify on {', '.join(described.unverified_nodes)}"
        if doing != said:
            said = doing
            out.note(doing)
        time.sleep(LOOK_EVERY_SECONDS)
    if described is None or described.older != chosen.found.log_id:
        raise TryAgain("the restore was ordered, and is not served in time; it may still happen. See holdfast status")
    return described


def show(out: Output, chosen: RestoreSource, now: HistoriesDescribed) -> None:
    dropped = now.mismatched + now.lost + now.lost_files
    verified = now.restored - dropped - now.unverified
    if out.as_json:
        out.data(
            {
                "history": f"{now.log_id:016x}",
                "from": plain(chosen.found),
                "master": now.name,
                "restored_objects": now.restored,
                "restored_bytes": now.restored_bytes,
                "verified_objects": verified,
                "unverified_objects": now.unverified,
                "unverified_nodes": now.unverified_nodes,
                "unverified_disks": now.unverified_disks,
                "mismatched_objects": now.mismatched,
                "lost_objects": now.lost,
                "lost_files": now.lost_files,
            }
        )
        return
    out.line(f"{now.name} serves history {now.log_id:016x}, restored from {chosen}")
    out.line(f"{now.restored:,} objects ({human_bytes(now.restored_bytes)}) were restored, {verified:,} are verified")
    if dropped:
        out.line(
            f"{dropped:,} were dropped: {now.mismatched:,} whose bytes are not the ones that were put, or without a "
            f"checksum; {now.lost:,} whose memory or disk did not come back; {now.lost_files:,} whose files are gone "
            "or spoiled"
        )
    if now.unverified:
        places = [*now.unverified_nodes, *(f"the disk of {node}" for node in now.unverified_disks)]
        out.line(
            f"{now.unverified:,} are not verified yet, on {', '.join(places)}: reads copy and compare them, and a node "
            "or disk that stays away is given up by itself"
        )
