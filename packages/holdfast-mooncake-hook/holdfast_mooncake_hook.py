"""Imported by the .pth file beside it, at the start of an interpreter that has HOLDFAST_AS_MOONCAKE set."""

from __future__ import annotations

import sys

try:
    from holdfast.compat.mooncake.import_hook import install
except ImportError as error:
    # A .pth file must not keep Python from starting; whoever imports mooncake.store finds the real one, or none.
    print(f"HOLDFAST_AS_MOONCAKE is set, and holdfast cannot be imported: {error}", file=sys.stderr)
else:
    install()
