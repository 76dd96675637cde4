"""A client that opens a view, says so, and waits with it."""

from __future__ import annotations

import sys

import holdfast

with holdfast.connect(sys.argv[1]) as cache, cache.view(sys.argv[2]) as view:
    print("viewing", len(view), flush=True)
    sys.stdin.readline()
