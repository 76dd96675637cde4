"""Mooncake's error codes, and which of them an error of holdfast is.

A drop-in never raises where the real one returns: whatever fails becomes a code, which engines take for a miss.
"""

from __future__ import annotations

from holdfast.compat.device_memory import DeviceCopyFailed
from holdfast.errors import (
    BadKey,
    BadPattern,
    BadValue,
    BufferTooSmall,
    Busy,
    ChecksumMismatch,
    ClientClosed,
    DeadlineExceeded,
    HoldfastError,
    LeaseLost,
    NodeLost,
    NotAuthorized,
    ObjectLeased,
    ObjectNotFound,
    ReplicaLost,
    TooLarge,
)

OK = 0
INTERNAL_ERROR = -1
NO_AVAILABLE_HANDLE = -200
INVALID_PARAMS = -600
ILLEGAL_CLIENT = -601
OBJECT_NOT_FOUND = -704
OBJECT_ALREADY_EXISTS = -705
OBJECT_HAS_LEASE = -706
LEASE_EXPIRED = -707
TRANSFER_FAIL = -800
CHECKSUM_MISMATCH = -801
RPC_FAIL = -900
RPC_TIMEOUT = -901
NOT_SUPPORTED = -1012
TASK_NOT_FOUND = -1400

# The first that fits counts.
_BY_ERROR: tuple[tuple[type[HoldfastError], int], ...] = (
    (ObjectNotFound, OBJECT_NOT_FOUND),
    (ObjectLeased, OBJECT_HAS_LEASE),
    # vLLM takes this for pressure and stops storing for the request: a log that cannot keep up is pressure, too.
    (Busy, NO_AVAILABLE_HANDLE),
    (TooLarge, NO_AVAILABLE_HANDLE),
    (BadKey, INVALID_PARAMS),
    (BadValue, INVALID_PARAMS),
    (BufferTooSmall, INVALID_PARAMS),
    (BadPattern, INVALID_PARAMS),
    (ClientClosed, INVALID_PARAMS),
    (NotAuthorized, ILLEGAL_CLIENT),
    (ChecksumMismatch, CHECKSUM_MISMATCH),
    (LeaseLost, LEASE_EXPIRED),
    (NodeLost, TRANSFER_FAIL),
    (ReplicaLost, TRANSFER_FAIL),
    (DeviceCopyFailed, TRANSFER_FAIL),
    (DeadlineExceeded, RPC_TIMEOUT),
)


def code_of(error: BaseException) -> int:
    if not isinstance(error, HoldfastError):
        return INTERNAL_ERROR
    return next((code for kind, code in _BY_ERROR if isinstance(error, kind)), RPC_FAIL)
