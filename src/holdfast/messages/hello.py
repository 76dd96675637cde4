"""The greeting of a caller that never connected before: a fresh key, from which masters derive its number (ADR 46)."""

from __future__ import annotations

from holdfast.entropy import fresh_bytes, fresh_id
from holdfast.messages.requests import CLIENT_KEY_BYTES, Hello


def fresh_hello(token: str = "", control: bool = False, looks: bool = False) -> Hello:
    """To be kept for the caller's life: whoever greets with the same key is the same client."""
    return Hello(fresh_id(), token, control, looks, fresh_bytes(CLIENT_KEY_BYTES))
