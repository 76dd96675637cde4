"""Testimony of nodes that a process on their machine, an earlier primary, has ended. See `doubt`.

A node is believed about processes of its own machine only, and only while its memory is mounted here. Its testimony
is not logged: a later master learns from the store whether this term is still in doubt.
"""

from __future__ import annotations

from holdfast.core.nodes.membership import known_member
from holdfast.core.primary.decision import Decision
from holdfast.core.primary.primary import Primary
from holdfast.ids import ProcessName
from holdfast.instant import Instant
from holdfast.messages.of_nodes import ReportGone
from holdfast.messages.requests import Done


def report_gone(primary: Primary, request: ReportGone, connection: int, now: Instant) -> Decision:
    member = known_member(primary, request.session, request.boot)
    gone = [one for one in primary.doubt.suspects if one in request.gone and one.machine == request.machine]
    if gone:
        seen_gone(primary, gone, member.name, now)
    return Decision(Done(len(gone)))


def seen_gone(primary: Primary, gone: list[ProcessName], witness: str, now: Instant) -> None:
    """Note that these suspects have ended, as a process on their machine reports. The last one ends the doubt."""
    doubt = primary.doubt
    doubt.suspects = [one for one in doubt.suspects if one not in gone]
    if not doubt.suspects and now < doubt.until:
        doubt.until = now
        _shorten_guard(primary, now)
        doubt.when_over(witness)


def _shorten_guard(primary: Primary, now: Instant) -> None:
    """Shorten the guard: no lease of an earlier primary, nor of this one so far, ends later than one given now (I8).
    Leases that end with the guard were only guarded; one known to last longer than a lease given now ends at another
    time."""
    state = primary.state
    until = now + max(state.lease_ttl_ms, state.longest_lease_ms)
    guard = primary.doubt.guard_until
    if until >= guard:
        return
    leases = state.catalogue.lease_until[: state.catalogue.top]
    leases[leases == guard] = until
    for entry, release_at in primary.release_at.items():
        if release_at == guard:
            primary.release_at[entry] = until
