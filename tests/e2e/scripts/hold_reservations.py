"""Reserve 24 MiB, write a part of each reservation, and hold them until killed. Arguments: address, mapped or tcp."""

from __future__ import annotations

import sys

import holdfast

PART = 1 << 20

with holdfast.connect(sys.argv[1], shared_memory=sys.argv[2] == "mapped") as cache:
    made = cache.reserve_many({f"held/{number}": 8 * PART for number in range(3)}, prefer="bench-0")
    for reservation in made:
        assert isinstance(reservation, holdfast.Reservation), reservation
        reservation.write(0, bytes(PART))
    print("reserved", flush=True)
    sys.stdin.read()
