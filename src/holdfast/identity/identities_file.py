"""The file of identities (TOML), and what it says now.

    [[identity]]
    name = "trainer"                       # several entries may share a name: one token each, for rotation
    roles = ["writer"]                     # reader, writer, node, master, operator
    tokens = ["sha256:..."]                # hashes, as `holdfast token new` and `holdfast token hash` print them
    certificates = ["trainer.example"]     # names of client certificates that stand for a token
    tenant = "blue"                        # none: the default tenant
    not_after = 2027-06-30                 # the last day (UTC) on which this entry counts, or a date and time
    shared_memory = false                  # may it map nodes' memory? Unless said: yes without a tenant, no with one

A file that is wrong in any place is refused whole: an entry that was left out for a misspelt key would shut somebody
out, or worse, an entry whose end was ignored would let somebody in. Entries of one name have the same roles, tenant and
mapping, because a session belongs to a name.
"""

from __future__ import annotations

import datetime as dt
import math
import re
import tomllib
from pathlib import Path
from typing import Any

from holdfast.errors import BadValue
from holdfast.identity.identities import HASH_PREFIX, Entry, Identities, Identity, hash_of
from holdfast.identity.roles import Role, with_included
from holdfast.identity.secret_files import read_secret_file

MAX_FILE_BYTES = 1 << 20
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}")
HASH = re.compile(re.escape(HASH_PREFIX) + "[0-9a-f]{64}")
MAX_CERTIFICATE_NAME = 253
KEYS = frozenset({"name", "roles", "tokens", "certificates", "tenant", "not_after", "shared_memory"})

Stamp = tuple[int, int, int, int, int]
"""What tells one content of a file from the next: device, inode, size, time of change, mode."""


class BadIdentities(BadValue):
    """The file of identities cannot be used; those that were in force still are."""


class IdentitiesFile:
    """A file of identities, and the identities in force: what it said when it was last right."""

    def __init__(self, path: Path) -> None:
        """Raises if the file cannot be used: nothing begins with a file that is wrong."""
        self.path = path
        self._read = self._seen = _stamp_of(path)
        self.identities = Identities(read_identities(path))

    def is_changed(self) -> bool:
        """Is there another content, which has been the same since the last look? One that an editor is still writing
        could be a correct file with half of the identities."""
        before, self._seen = self._seen, _stamp_of(self.path)
        return self._seen == before != self._read

    def read_again(self) -> None:
        """Put the file's identities in force. If it is wrong, keep those that are, and raise."""
        self._read = self._seen
        try:
            self.identities.replace(read_identities(self.path))
        except BadValue as error:
            self.identities.fault = str(error)
            raise


def _stamp_of(path: Path) -> Stamp:
    """Zeros while there is none."""
    try:
        found = path.stat()
    except OSError:
        return 0, 0, 0, 0, 0
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns, found.st_mode


def read_identities(path: Path) -> list[Entry]:
    return parse_identities(read_secret_file(path, MAX_FILE_BYTES), str(path))


def parse_identities(text: str, where: str) -> list[Entry]:
    """All entries. The error says which entry is wrong and how, and quotes nothing that could be a token."""
    try:
        tables = tomllib.loads(text)
    except (ValueError, RecursionError) as error:
        reason = str(error) if isinstance(error, tomllib.TOMLDecodeError) else type(error).__name__
        raise BadIdentities(f"{where} is not TOML: {reason}") from None
    found = tables.pop("identity", [])
    if tables or not isinstance(found, list) or not all(isinstance(one, dict) for one in found):
        raise BadIdentities(f"{where} holds nothing but [[identity]] entries; see docs/guides/operating.md")
    entries = []
    for number, table in enumerate(found, 1):
        try:
            entries.append(_entry(table))
        except ValueError as error:
            raise BadIdentities(f"{where}, entry {number}{_named(table)}: {error}") from None
    if not entries:
        raise BadIdentities(
            f"{where} has no [[identity]], so that nobody could connect. Add one: holdfast token new NAME --role ROLE"
        )
    _check_together(entries, where)
    return entries


def _named(table: dict[str, Any]) -> str:
    name = table.get("name")
    return f" ({name})" if isinstance(name, str) and NAME.fullmatch(name) else ""


def _entry(table: dict[str, Any]) -> Entry:
    if unknown := sorted(repr(key) for key in table.keys() - KEYS):
        raise ValueError(f"no such key: {', '.join(unknown)}; there are {', '.join(sorted(KEYS))}")
    tenant = _text(table, "tenant")
    identity = Identity(
        _text(table, "name", required=True), _roles(table), tenant, _shared_memory(table, default=not tenant)
    )
    hashes, certificates = _texts(table, "tokens"), _texts(table, "certificates")
    if not all(HASH.fullmatch(one) for one in hashes):
        raise ValueError("tokens are hashes, sha256: and 64 hexadecimal digits; make one with `holdfast token hash`")
    if not all(one and len(one) <= MAX_CERTIFICATE_NAME and one.isprintable() for one in certificates):
        raise ValueError("certificates are names of at most 253 characters, as in the certificates themselves")
    if hash_of("") in hashes:
        raise ValueError("one of its tokens is the empty one, which everybody has; make one with `holdfast token new`")
    if not hashes and not certificates:
        raise ValueError("nothing stands for it: give tokens or certificates")
    return Entry(identity, hashes, certificates, _not_after(table.get("not_after")))


def _text(table: dict[str, Any], key: str, required: bool = False) -> str:
    found = table.get(key, "")
    if not isinstance(found, str) or (found and not NAME.fullmatch(found)):
        raise ValueError(f"{key} must be up to 63 letters, digits, dots, dashes and underscores")
    if required and not found:
        raise ValueError(f"{key} is missing")
    return found


def _texts(table: dict[str, Any], key: str) -> tuple[str, ...]:
    found = table.get(key, [])
    if not isinstance(found, list) or not all(isinstance(one, str) for one in found):
        raise ValueError(f"{key} must be a list of texts")
    return tuple(found)


def _roles(table: dict[str, Any]) -> frozenset[Role]:
    named = _texts(table, "roles")
    if not named or not all(name in Role.__members__.values() for name in named):
        raise ValueError(f"roles must be some of {', '.join(Role)}")
    return with_included(Role(name) for name in named)


def _shared_memory(table: dict[str, Any], default: bool) -> bool:
    found = table.get("shared_memory", default)
    if not isinstance(found, bool):
        raise ValueError("shared_memory must be true or false")
    return found


def _not_after(found: object) -> float:
    """The first moment at which the entry no longer counts, in seconds since 1970."""
    if found is None:
        return math.inf
    try:
        if isinstance(found, dt.datetime):
            return (found if found.tzinfo is not None else found.replace(tzinfo=dt.UTC)).timestamp()
        if isinstance(found, dt.date):
            midnight = dt.datetime(found.year, found.month, found.day, tzinfo=dt.UTC)
            return midnight.timestamp() + 86_400
    except (OverflowError, ValueError):
        pass
    raise ValueError("not_after must be a date (2027-06-30) or a date and time (2027-06-30T12:00:00Z)")


def _check_together(entries: list[Entry], where: str) -> None:
    """What one entry has must not contradict another."""
    by_name: dict[str, Identity] = {}
    by_proof: dict[str, str] = {}
    for entry in entries:
        name = entry.identity.name
        if by_name.setdefault(name, entry.identity) != entry.identity:
            raise BadIdentities(
                f"{where}: the entries of {name!r} differ in roles, tenant or shared_memory; "
                "make them the same, or give one of them another name"
            )
        for proof in (*entry.hashes, *entry.certificates):
            if proof in by_proof:
                raise BadIdentities(
                    f"{where}: a token or certificate is listed twice, for {by_proof[proof]!r} and for {name!r}; "
                    "remove one of them"
                )
            by_proof[proof] = name
