"""Packed rows as NumPy tables, for batches that are cheaper as array operations than row by row.

A table has the bytes of the packed rows, and a column for each field: `table_of(PUT_TABLE, rows)["size"]`. Clients have
no NumPy, so the layouts themselves are in `messages.rows`.
"""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from holdfast.messages.rows import ListedFileRow, LocatedRow, PutRow, RowLayout, TicketRow

Table: TypeAlias = npt.NDArray[np.void]
TableType: TypeAlias = "np.dtype[np.void]"


def _type_of(layout: RowLayout[Any]) -> TableType:
    return np.dtype([(field, "<u8") for field in layout.fields])


PUT_TABLE = _type_of(PutRow)
LOCATED_TABLE = _type_of(LocatedRow)
TICKET_TABLE = _type_of(TicketRow)
LISTED_FILE_TABLE = _type_of(ListedFileRow)


def table_of(kind: TableType, packed: bytes) -> Table:
    """The rows, read-only and not copied; ValueError unless they are whole."""
    return np.frombuffer(packed, kind)


def new_table(kind: TableType, count: int) -> Table:
    """This many rows of zeros; `tobytes` packs them."""
    return np.zeros(count, kind)
