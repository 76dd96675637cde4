"""The connection of a follower's threads: closed is closed, whatever was being dialled."""

from __future__ import annotations

import pytest

from holdfast.errors import Unreachable
from holdfast.instant import now_seconds
from holdfast.messages.requests import Exists, Hello
from holdfast.operations.effects import Call, Operation
from holdfast.operations.masters import Masters
from holdfast.session.thread_line import ThreadLine
from tests.client.fake_master import FakeMaster


class ClosedInBetween(ThreadLine):
    """Another thread closes it right after the dialling thread has looked whether it is closed."""

    def is_closed(self) -> bool:
        found = super().is_closed()
        self.looks = getattr(self, "looks", 0) + 1
        if self.looks == 2:
            self.close()
        return found


def test_a_line_that_is_closed_while_it_dials_keeps_no_connection() -> None:
    """I10: a keepalive over it would be held by the master for seconds, and so would the stop of the node."""

    def ask() -> Operation[None]:
        yield Call(Exists(["key"], False), now_seconds() + 20)

    with FakeMaster(None) as master:
        line = ClosedInBetween(Masters(master.address), Hello(1))
        with pytest.raises(Unreachable):
            line.run(ask())
        assert line.looks >= 2
        assert line._channel is not None
        assert line._channel.closed
