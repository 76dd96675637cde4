"""Requests for the lab: which blocks each one looks up, from a generator of conversations or from a recorded trace.

A request is the blocks of one prompt, in order. Prompts that begin alike share their first blocks, as the turns of one
conversation do. A cache serves a request so: look the blocks up, read the leading ones that are there, write the rest.
A block's bytes follow from its number, so that its reader knows every byte.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import random
from pathlib import Path

from holdfast.errors import BadValue

Request = tuple[int, ...]

SYSTEM_BLOCKS = 3
MOST_OPEN = 60
MOST_BLOCKS = 48


def key_of(block: int) -> str:
    return f"lab/block/{block:08d}"


def value_of(block: int, size_bytes: int) -> bytes:
    mark = hashlib.blake2b(block.to_bytes(8, "little"), digest_size=64).digest()
    return (mark * (size_bytes // len(mark) + 1))[:size_bytes]


def conversations(count: int, seed: int) -> list[Request]:
    """Turns of many conversations at a time: each goes on with what it was, and the latest are the likeliest."""
    chance = random.Random(seed)
    numbers = itertools.count()
    systems = [tuple(next(numbers) for _ in range(SYSTEM_BLOCKS)) for _ in range(4)]
    open_now: list[Request] = []
    requests: list[Request] = []
    for _ in range(count):
        if not open_now or (len(open_now) < MOST_OPEN and chance.random() < 0.25):
            prompt = chance.choice(systems)
        else:
            # The end of the list was active last.
            prompt = open_now.pop(len(open_now) - 1 - min(int(chance.expovariate(0.15)), len(open_now) - 1))
        prompt += tuple(next(numbers) for _ in range(chance.randint(1, 5)))
        requests.append(prompt)
        if len(prompt) < MOST_BLOCKS and chance.random() < 0.9:
            open_now.append(prompt)
    return requests


def traced(path: Path, count: int) -> list[Request]:
    """The first requests of a trace; a line is a JSON object, and `hash_ids` in it names the blocks."""
    requests: list[Request] = []
    with path.open(encoding="utf-8") as lines:
        for number, line in enumerate(itertools.islice(lines, count), 1):
            try:
                requests.append(tuple(int(block) for block in json.loads(line)["hash_ids"]))
            except (ValueError, KeyError, TypeError) as error:
                raise BadValue(f"line {number} of {path} is no request with hash_ids: {error}") from None
    if len(requests) < 4:
        raise BadValue(f"{path} holds {len(requests)} requests, too few to kill a primary in the middle of")
    return requests


def distinct_blocks(requests: list[Request]) -> int:
    return len(set(itertools.chain.from_iterable(requests)))
