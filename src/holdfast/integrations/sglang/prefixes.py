"""How long a prefix can be restored, when several pools must agree.

SGLang asks with the page hashes of a sequence. The pages of the main pool must be there from the start; each further
pool has a policy that says which lengths it allows. Ranks intersect the lengths, so all of them are told, not the
longest alone: with a window of the last pages, length 5 may be possible while 4 is not.
"""

from __future__ import annotations

from collections.abc import Sequence

from holdfast.errors import BadValue


def leading(present: Sequence[bool]) -> int:
    """How many are true before the first that is not."""
    for count, there in enumerate(present):
        if not there:
            return count
    return len(present)


def allowed(policy: str, present: Sequence[bool], window: int) -> list[int]:
    """The prefix lengths that a pool allows, given which of its pages are there, in order."""
    if policy == "all_pages":
        return list(range(1, leading(present) + 1))
    if policy == "trailing_pages":
        lengths = []
        run = 0
        for length, there in enumerate(present, 1):
            run = run + 1 if there else 0
            if run >= min(window, length):
                lengths.append(length)
        return lengths
    raise BadValue(f"the hit policy {policy!r} is not known; there are all_pages, trailing_pages and block_groups")


def covered(present: Sequence[bool], group_pages: int, block_pages: int) -> int:
    """Pages of the main pool that the leading complete groups of this pool stand for."""
    if group_pages < 1:
        raise BadValue("a transfer by block groups has groups of at least one page")
    return leading(present) // group_pages * block_pages
