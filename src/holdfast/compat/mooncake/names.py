"""Keys as callers say them, and as they are stored.

A tenant is a prefix of its keys: `|team-a|key`. It keeps tenants from colliding by accident, and from listing and
removing each other's keys; it is not a security boundary, since any client may use any prefix. Keys of the default
tenant are stored as they are, except those that begin with the mark, so that no two are ever stored as one.

A key over holdfast's limit is cut and completed by its SHA-256.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence

from holdfast.ids import MAX_KEY_BYTES

DEFAULT = "default"
MARK = "|"
DIGEST_BYTES = 1 + 64


def _escaped(tenant: str) -> str:
    return tenant.replace("%", "%25").replace(MARK, "%7C")


class Names:
    """The keys of one tenant."""

    def __init__(self, tenant: str = DEFAULT) -> None:
        self.tenant = tenant or DEFAULT
        self.prefix = f"{MARK}{_escaped(self.tenant)}{MARK}"
        self.plain = self.tenant == DEFAULT

    def stored(self, key: str) -> str | None:
        """The key as it is stored; None: this cannot be a key."""
        if not isinstance(key, str):
            raise TypeError(f"incompatible function arguments: a key is a str, not {type(key).__name__}")
        if self.plain and key[:1] != MARK:
            if 0 < len(key) <= MAX_KEY_BYTES and key.isascii():
                return key
            full = key
        else:
            full = self.prefix + key
        if not key:
            return None
        try:
            encoded = full.encode()
        except UnicodeEncodeError:  # A lone surrogate.
            return None
        if len(encoded) <= MAX_KEY_BYTES:
            return full
        head = encoded[: MAX_KEY_BYTES - DIGEST_BYTES].decode(errors="ignore")
        return f"{head}#{hashlib.sha256(encoded).hexdigest()}"

    def stored_each(self, keys: Sequence[str]) -> list[str | None]:
        if isinstance(keys, (str, bytes)):
            raise TypeError(f"incompatible function arguments: a list of keys is wanted, not {type(keys).__name__}")
        return [self.stored(key) for key in keys]

    def shown(self, stored: str) -> str | None:
        """The key as its tenant says it; None: it is another tenant's."""
        if stored.startswith(self.prefix):
            return stored[len(self.prefix) :]
        return stored if self.plain and not stored.startswith(MARK) else None

    def patterns(self) -> list[str]:
        """RE2 expressions that together match the stored keys of this tenant."""
        own = f"^{re.escape(self.prefix)}"
        return [f"^[^{MARK}]", own] if self.plain else [own]

    def prefixes(self) -> list[str]:
        """The prefixes of this tenant's stored keys; `shown` sorts out the others."""
        return [""] if self.plain else [self.prefix]
