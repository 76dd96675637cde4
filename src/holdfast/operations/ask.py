"""A request that is sent until it is answered: the one retry policy, with parameters.

Retrying is safe because every request may be sent again: reads change nothing, grants and removals carry a number that
the client chose, commits are identified by (grant, offset), and what nodes report is stated as facts.

1. The request was not sent, or its reply was lost: send it again, to whoever leads then.
2. The master does not lead, or stops: leave it, for the one that it named.
3. The master is busy: ask the same one again.
4. It did not answer within the time of one call, where a call has less time than the request: leave it.
5. Anything else is the answer, and is raised.

Between two tries there is a pause, which doubles. The deadline ends it all.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol, TypeVar

from holdfast.errors import (
    Busy,
    DeadlineExceeded,
    HoldfastError,
    LogFull,
    LogFullInDoubt,
    NodeAway,
    NotAllowed,
    NotAuthorized,
    NotLeader,
    ReplyLost,
    Settling,
    Stopping,
    TryAgain,
    Uncertain,
    Unreachable,
)
from holdfast.instant import Clock
from holdfast.messages.requests import Failed
from holdfast.messages.shapes import Message
from holdfast.operations.effects import Call, LeaveMaster, Operation, Sleep
from holdfast.wire.codec import expect, raised

T = TypeVar("T", bound=Message)
STORED_AND_LOST = "an answer was lost, and the put may have been stored and lost again"


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    first_pause: float
    longest_pause: float
    longest_settling_pause: float
    """While a new primary is unsure whether the last one is gone. That usually ends within a second, when a node has
    seen it gone."""
    changes: tuple[type[Message], ...] = ()
    """Requests of which a lost reply leaves in doubt what a later refusal means."""
    call_seconds: float = math.inf
    """The longest wait for one reply."""
    given_up: str = "no master answered before the deadline; nothing was changed"


class Asker(Protocol):
    """Whose request it is."""

    @property
    def clock(self) -> Clock: ...

    def check_open(self) -> None:
        """Raise if nothing more is to be sent."""

    def tried_again(self) -> None:
        """The request was not served, and is sent once more."""


def ask_until(
    asker: Asker,
    policy: RetryPolicy,
    message: Message,
    kind: type[T],
    deadline: float,
    check: Callable[[], None] | None = None,
    unsure: bool = False,
) -> Operation[tuple[T, float]]:
    """The reply, and the earliest time at which the request may have arrived: durations in the reply count from there.
    `check` raises if the request must not be sent now. `unsure`: it was sent before, and may have taken effect."""
    pause, sent_at, changes = policy.first_pause, asker.clock(), isinstance(message, policy.changes)
    last: TryAgain | Uncertain | None = None
    sent: Message | Call = message if check is None else Call(message, deadline, check)
    while True:
        asker.check_open()
        if policy.call_seconds < math.inf:
            sent = Call(message, min(deadline, asker.clock() + policy.call_seconds), check)
        try:
            reply = yield sent
        except Unreachable as error:
            if last is None or asker.clock() < deadline:  # The earlier reason says more than that time is up now.
                last = error
        except ReplyLost as error:
            last, unsure = error, True
        except NodeAway as error:  # Sent before, it may have been stored while the node was alive.
            raise ReplyLost(f"{STORED_AND_LOST}: {error}") if unsure else error from None
        except (NotAllowed, NotAuthorized) as error:  # By the greeting. It says nothing about an earlier try.
            raise _after_a_lost_reply(error) if unsure and changes else error from None
        except DeadlineExceeded as error:
            if policy.call_seconds == math.inf or asker.clock() + pause >= deadline:
                raise (last if isinstance(last, TryAgain) and not changes else error) from None
            last, unsure = error, True
            yield LeaveMaster()
        else:
            if type(reply) is kind:
                return reply, sent_at
            last = _worth_another_try(reply, kind, unsure and changes)
            if isinstance(last, (Stopping, NotLeader)):
                yield LeaveMaster(last.hint)
        wait = max(pause, last.retry_after_ms / 1000)
        if asker.clock() + wait >= deadline:
            raise _final(policy, last, unsure and changes)
        yield Sleep(wait)
        asker.tried_again()
        pause = min(2 * pause, policy.longest_settling_pause if isinstance(last, Settling) else policy.longest_pause)
        if not unsure:
            sent_at = asker.clock()


def _worth_another_try(reply: Message, kind: type[Message], unsure: bool) -> TryAgain:
    """The error that the master reported, if the same request may succeed soon; otherwise it is raised.

    `unsure`: the change may have been made when it was sent before. A refusal now, because its grant has ended since,
    says nothing about that; a new attempt could make it twice, the second time after its removal (I7)."""
    if isinstance(reply, Failed):
        error = raised(reply)
        if isinstance(error, (Stopping, NotLeader, Busy)):
            return error
        raise _after_a_lost_reply(error) if unsure else error
    expect(reply, kind)
    raise AssertionError("a reply of the right kind is not a failure")


def _after_a_lost_reply(error: HoldfastError) -> ReplyLost:
    return ReplyLost(f"an answer was lost, and the change may have been made; asked again: {error}")


def _final(policy: RetryPolicy, last: TryAgain | Uncertain, unsure: bool) -> Exception:
    if unsure:
        if isinstance(last, LogFull | LogFullInDoubt):
            return LogFullInDoubt(f"no answer before the deadline, and the change may have happened: {last}")
        return DeadlineExceeded(f"no answer before the deadline, and the change may have happened ({last})")
    if isinstance(last, TryAgain):
        return last
    return Unreachable(f"{policy.given_up} ({last})")
