"""A table of keys in plain memory."""

from __future__ import annotations

import numpy as np

from holdfast.core.catalogue import key_table as module
from holdfast.core.catalogue.catalogue import Catalogue, Words
from holdfast.core.catalogue.key_table import KeyTable
from holdfast.wire.key_table_layout import GONE, MASK


def show(catalogue: Catalogue, words: int = 1 << 17, memory: Words | None = None) -> tuple[KeyTable, Words]:
    """The catalogue's keys from now on, and the memory that they are in."""
    if memory is None:
        memory = np.zeros(words, np.uint64)
    shown = catalogue.key_table = KeyTable(catalogue, memory)
    return shown, memory


def fingerprints_in(words: Words) -> list[int]:
    table = words[module.FIRST_PLACES :][: int(words[MASK]) + 1]
    return sorted(table[table > GONE].tolist())
