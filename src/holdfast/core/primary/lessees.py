"""Small numbers for the clients that a primary leases objects to.

A column of the catalogue tells for each object whether all of its live leases were given to one client, and to
which one: that client may remove the object once it has forgotten them (DESIGN: its own leases never keep it from
removing). Numbers are never reused, so forgetting whose a number was is harmless: its leases then belong to nobody in
particular.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

SEVERAL_LESSEES = 0
"""In the column: several clients, or unknown ones. An earlier primary's leases are of this kind."""
REVOKED_LESSEE = 2**32 - 1
"""In the column: a client that the operator has revoked. Its leases keep nobody from removing, but they keep the
memory: the client may be reading there until they end (I2)."""
MOST_KNOWN = 65_536


class Lessees:
    """Numbers, from 1 on, of the clients that were recently given leases."""

    __slots__ = ("_last", "_numbers")

    def __init__(self) -> None:
        self._last = 0
        self._numbers: dict[int, int] = {}

    def known(self, client: int) -> int:
        """The number that this client has; `SEVERAL_LESSEES` if it has none."""
        return self._numbers.get(client, SEVERAL_LESSEES)

    def number_of(self, client: int) -> int:
        number = self._numbers.get(client)
        if number is None:
            if len(self._numbers) >= MOST_KNOWN:
                self._numbers.clear()
            # After so many clients all further ones get 0 (SEVERAL_LESSEES), which is safe.
            self._last = min(self._last + 1, REVOKED_LESSEE)
            number = self._numbers[client] = self._last % REVOKED_LESSEE
        return number

    def revoke(self, client: int, column: npt.NDArray[np.uint32]) -> None:
        """Mark the objects that are leased to this client alone."""
        number = self._numbers.pop(client, SEVERAL_LESSEES)
        if number != SEVERAL_LESSEES:
            column[column == number] = REVOKED_LESSEE
