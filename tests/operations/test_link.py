"""How a runner finds the primary. The policy does no I/O: the test opens the connections, and says who answers."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from holdfast import errors
from holdfast.instant import now_seconds
from holdfast.messages.requests import Hello, Welcome
from holdfast.operations.effects import Open, Operation, Work
from holdfast.operations.link import USUAL, LinkOptions, PlainCaller, PrimaryLink
from holdfast.operations.masters import LOST_SHARE, Masters
from holdfast.transport.channel import Channel


class Answering:
    """Masters by their addresses: each accepts a connection, or refuses it with its error."""

    def __init__(self, **masters: errors.HoldfastError | None) -> None:
        self.masters = masters
        self.dialled: list[str] = []
        self.patience: list[float] = []
        self.opened: list[Any] = []

    def open(self, effect: Open) -> Any:
        name = effect.address.partition(":")[0]
        self.dialled.append(name)
        self.patience.append(effect.deadline - now_seconds())
        refusal = self.masters[name]
        if refusal is not None:
            raise refusal
        channel = SimpleNamespace(closed=False, welcome=Welcome(7, 1, name, 0, 0, 0, 0, 0))
        channel.close = lambda: setattr(channel, "closed", True)
        self.opened.append(channel)
        return channel

    def play(self, operation: Operation[Any]) -> Any:
        """The result of the operation."""
        effect = next(operation)
        while True:
            try:
                if isinstance(effect, Open):
                    opened = self.open(effect)
                else:
                    assert isinstance(effect, Work)
                    opened = effect.run()
            except errors.HoldfastError as error:
                effect = operation.throw(error)
            else:
                try:
                    effect = operation.send(opened)
                except StopIteration as stop:
                    return stop.value


def link_to(addresses: str, options: LinkOptions = USUAL) -> PrimaryLink[Channel]:
    return PrimaryLink(Masters(addresses), PlainCaller(Hello(1)), options)


def not_leader(hint: str = "") -> errors.NotLeader:
    error = errors.NotLeader("another one leads")
    error.hint = hint
    return error


def soon() -> float:
    return now_seconds() + 20


def test_a_standby_that_names_the_primary_sends_the_round_there() -> None:
    link, there = link_to("a:1,b:2,c:3"), Answering(a=not_leader("c:3"), b=not_leader(), c=None)
    assert there.play(link.connect(soon())) is link.channel
    assert there.dialled == ["a", "c"]
    assert link.address == "c:3"


def test_a_hint_that_leads_nowhere_costs_one_try_and_the_round_goes_on() -> None:
    link = link_to("a:1,b:2")
    there = Answering(a=not_leader("x:9"), b=None, x=errors.Unreachable("nobody answers"))
    there.play(link.connect(soon()))
    assert there.dialled == ["a", "x", "b"]


def test_a_refusal_says_more_than_that_the_others_cannot_be_reached() -> None:
    """A wrong token: nobody looks for an outage then. And one master with another token keeps nobody from the rest."""
    there = Answering(a=errors.NotAuthorized("the token is wrong"), b=errors.Unreachable("nobody answers"), c=None)
    with pytest.raises(errors.NotAuthorized):
        there.play(link_to("a:1,b:2").connect(soon()))
    there.play(link_to("a:1,c:3").connect(soon()))
    assert there.dialled == ["a", "b", "a", "c"]


def test_the_reason_of_the_last_master_is_the_reason() -> None:
    """A follower comes back sooner to masters that say that they do not lead than to a network that is down."""
    there = Answering(a=errors.Unreachable("nobody answers"), b=not_leader())
    with pytest.raises(errors.NotLeader):
        there.play(link_to("a:1,b:2").connect(soon()))


def test_that_a_tenant_has_too_many_clients_says_more_than_that_the_others_are_standbys() -> None:
    there = Answering(a=errors.TooManyClients("it may have 1"), b=not_leader())
    with pytest.raises(errors.TenantBusy, match="it may have 1"):
        there.play(link_to("a:1,b:2").connect(soon()))


def test_the_master_that_was_lost_is_tried_last_and_briefly() -> None:
    link, there = link_to("a:1,b:2", LinkOptions(10.0)), Answering(a=None, b=not_leader())
    there.play(link.connect(soon()))
    assert link.channel is not None
    link.channel.close()
    there.masters["a"] = errors.Unreachable("no welcome came")
    with pytest.raises(errors.Unreachable):
        there.play(link.connect(soon()))
    assert there.dialled == ["a", "b", "a"]
    assert there.patience[1] > 9.0
    assert there.patience[2] <= 10.0 * LOST_SHARE


def test_a_deadline_ends_the_wait_for_a_master() -> None:
    there = Answering(a=None)
    there.play(link_to("a:1", LinkOptions(10.0)).connect(now_seconds() + 0.5))
    assert there.patience[0] <= 0.5


def first_dial(link: PrimaryLink[Channel]) -> tuple[Operation[Channel], Open]:
    """An operation that connects, played until it opens its first connection."""
    dialling = link.connect(soon())
    effect = next(dialling)
    assert isinstance(effect, Work)
    effect = dialling.send(effect.run())
    assert isinstance(effect, Open)
    return dialling, effect


def test_a_link_that_is_closed_while_it_dials_keeps_no_connection() -> None:
    """I10: a keepalive over it would be held by the master for seconds, and so would the stop of the node. I17."""
    link, there = link_to("a:1"), Answering(a=None)
    dialling, first = first_dial(link)
    channel = there.open(first)
    link.caller.closed = "the node is stopping"
    with pytest.raises(errors.Unreachable, match="the node is stopping"):
        dialling.send(channel)
    assert channel.closed


def test_a_link_that_is_closed_between_two_masters_tries_no_other() -> None:
    link = link_to("a:1,b:2")
    dialling, _ = first_dial(link)
    link.caller.closed = "the node is stopping"
    with pytest.raises(errors.Unreachable, match="the node is stopping"):
        dialling.throw(errors.Unreachable("nobody answers"))


def nearer_link() -> PrimaryLink[Channel]:
    link = link_to("a:1")
    link.caller.nearer = lambda welcome: "unix:@near"  # type: ignore[method-assign]
    return link


def test_a_master_of_this_machine_is_spoken_to_over_its_unix_socket() -> None:
    link, there = nearer_link(), Answering(a=None, unix=None)
    there.play(link.connect(soon()))
    far, near = there.opened
    assert link.channel is near
    assert far.closed
    assert link.address == "a:1", "that is where it is dialled again"


def test_without_its_unix_socket_the_longer_way_is_kept() -> None:
    link, there = nearer_link(), Answering(a=None, unix=errors.Unreachable("another network namespace"))
    there.play(link.connect(soon()))
    assert link.channel is there.opened[0]
    assert not there.opened[0].closed


@pytest.mark.parametrize("error", [not_leader(), errors.NotAuthorized("the token is wrong")])
def test_the_longer_way_is_closed_when_the_nearer_one_is_refused(error: errors.HoldfastError) -> None:
    """I17: a master that steps down between the two greetings leaves no connection behind."""
    there = Answering(a=None, unix=error)
    with pytest.raises(type(error)):
        there.play(nearer_link().connect(soon()))
    assert there.opened[0].closed


def test_the_longer_way_is_closed_when_the_nearer_one_is_interrupted() -> None:
    """I17."""
    link, there = nearer_link(), Answering(a=None)
    dialling, first = first_dial(link)
    channel = there.open(first)
    assert isinstance(dialling.send(channel), Open)
    dialling.close()
    assert channel.closed
    assert link.channel is None


def test_only_the_connection_that_was_used_is_left() -> None:
    """I10: otherwise what others have under way on the new one would be in doubt."""
    link, there = link_to("a:1,b:2"), Answering(a=None, b=None)
    old = there.play(link.connect(soon()))
    old.close()
    new = there.play(link.connect(soon()))
    link.leave(old, "x:9")
    assert not new.closed
    link.leave(new, "x:9")
    assert new.closed
    there.masters["x"] = None
    there.play(link.connect(soon()))
    assert there.dialled == ["a", "b", "x"]
