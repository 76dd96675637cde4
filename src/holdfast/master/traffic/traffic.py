"""Everything that the connections of a master share: the buffer they receive into, the time of the loop, and bounds."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from holdfast.master.traffic.admission import Admission, Caps
from holdfast.master.traffic.backlog import Backlog
from holdfast.master.traffic.turns import Turns
from holdfast.wire.codec import FIRST_BYTES

if TYPE_CHECKING:
    from holdfast.master.connection import Connection


class Traffic:
    def __init__(self, caps: Caps) -> None:
        self.admission: Admission[Connection] = Admission(caps)
        self.scratch = memoryview(bytearray(FIRST_BYTES))
        """All connections receive into this, one after another."""
        self.backlog: Backlog[Connection] = Backlog()
        self.turns = Turns(lambda serve: asyncio.get_running_loop().call_soon(serve), self.backlog.may_reply)
