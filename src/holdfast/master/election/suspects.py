"""A new primary's own check of earlier primaries on its machine that may still be answering.

It took over by a guess a moment before the process had ended, or it replaces a primary that had itself guessed. If the
new primary is on another machine than the suspects, their nodes testify (`core.nodes.testimony`).
"""

from __future__ import annotations

import asyncio

from holdfast.core.nodes.testimony import seen_gone
from holdfast.core.primary.primary import Primary
from holdfast.instant import now_ms
from holdfast.witness import can_see, is_gone

LOOK_SECONDS = 0.05


async def watch_suspects(primary: Primary, name: str) -> None:
    """Watch them until none is left that can be seen from here, or the doubt is over."""
    doubt = primary.doubt
    while now_ms() < doubt.until and any(map(can_see, doubt.suspects)):
        gone = [one for one in doubt.suspects if is_gone(one)]
        if gone:
            seen_gone(primary, gone, name, now_ms())
        await asyncio.sleep(LOOK_SECONDS)
