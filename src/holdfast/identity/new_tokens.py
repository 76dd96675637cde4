"""New tokens and their entries in a file of identities, and how a token gets out of it again.

A token has 256 random bits. It is shown once, to whoever makes it; the file gets its hash. The text of the file is
edited, so that comments stay, and the file is replaced as a whole, so that no master reads half of it.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from holdfast.entropy import fresh_bytes
from holdfast.errors import BadValue
from holdfast.identity.identities import Entry, hash_of
from holdfast.identity.identities_file import MAX_FILE_BYTES, parse_identities
from holdfast.identity.secret_files import read_secret_file

PREFIX = "hf_"
"""Tells people, and programs that look for secrets in files, what it is."""
TOKEN_RANDOM_BYTES = 32


def fresh_token() -> str:
    return PREFIX + fresh_bytes(TOKEN_RANDOM_BYTES).hex()


@dataclass(frozen=True, slots=True)
class NewEntry:
    """What somebody says of a new token. Empty roles, tenant and mapping: those of the same name in the file."""

    name: str
    roles: Sequence[str] = ()
    tenant: str = ""
    not_after: str = ""
    """As in TOML: a date, or a date and time."""
    shared_memory: bool | None = None

    def text(self, token: str, before: str = "") -> str:
        """The entry as TOML, correct after the text `before`. Raises `BadIdentities` otherwise."""
        said = self._like_before(before) if not self.roles and before else self
        quoted = ", ".join(f'"{role}"' for role in said.roles)
        lines = ["[[identity]]", f'name = "{said.name}"', f"roles = [{quoted}]", f'tokens = ["{hash_of(token)}"]']
        lines += [f'tenant = "{said.tenant}"'] if said.tenant else []
        lines += [f"not_after = {said.not_after}"] if said.not_after else []
        if said.shared_memory is not None:
            lines.append(f"shared_memory = {str(said.shared_memory).lower()}")
        entry = "\n".join(lines) + "\n"
        parse_identities(before + entry, "the new entry" if not before else "the file with the new entry")
        return entry

    def _like_before(self, before: str) -> NewEntry:
        known = [one.identity for one in parse_identities(before, "the file") if one.identity.name == self.name]
        if not known:
            return self
        roles, tenant, maps = [role.value for role in sorted(known[0].roles)], known[0].tenant, known[0].shared_memory
        return NewEntry(self.name, roles, self.tenant or tenant, self.not_after, maps)


def append_entry(path: Path, entry: NewEntry, token: str) -> str:
    """Append the entry of this token to the file, which is made if there is none. The entry as it was written."""
    path = path.resolve()
    with _held(path.parent):
        before = read_secret_file(path, MAX_FILE_BYTES) if path.exists() else ""
        if before and not before.endswith("\n"):
            before += "\n"
        text = entry.text(token, before)
        _replace(path, before + ("\n" if before else "") + text)
    return text


def remove_token(path: Path, token: str) -> str:
    """Take this token out of the file, with its entry if nothing else stands for that. Whose it was."""
    path = path.resolve()
    with _held(path.parent):
        before = read_secret_file(path, MAX_FILE_BYTES)
        hashed = hash_of(token)
        entries = parse_identities(before, str(path))
        found = next((entry for entry in entries if hashed in entry.hashes), None)
        if found is None:
            raise BadValue(f"{path} does not list this token; nothing was changed")
        kept = Entry(
            found.identity, tuple(one for one in found.hashes if one != hashed), found.certificates, found.not_after
        )
        has_proofs = bool(kept.hashes or kept.certificates)
        text = _without(before, hashed, has_proofs)
        wanted = [kept if entry is found else entry for entry in entries if entry is not found or has_proofs]
        if parse_identities(text, f"{path} without this token") != wanted:
            raise BadValue(f"{path} is written in a way that only people can edit; nothing was changed. Do it by hand")
        _replace(path, text)
    return found.identity.name


def _without(text: str, hashed: str, keeps_entry: bool) -> str:
    """The text without this hash, or without the lines of its entry up to the comments of the next one."""
    if keeps_entry:
        return re.sub(rf"""(["']){re.escape(hashed)}\1\s*,?\s*""", "", text, count=1)
    lines = text.splitlines(keepends=True)
    at = next(number for number, line in enumerate(lines) if hashed in line)
    heads = [number for number, line in enumerate(lines[: at + 1]) if line.strip().startswith("[[")]
    if not heads:
        return text  # The file is one line, or several that mean nothing alone.
    first = heads[-1]
    last = next((number for number in range(at, len(lines)) if lines[number].strip().startswith("[[")), len(lines))
    while last > at + 1 and lines[last - 1].lstrip()[:1] in ("", "#"):
        last -= 1
    return "".join(lines[:first] + lines[last:])


@contextlib.contextmanager
def _held(directory: Path) -> Iterator[None]:
    """Two that append at once: one after the other."""
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def _replace(path: Path, content: str) -> None:
    draft = path.with_name(f".{path.name}.{fresh_bytes(4).hex()}")
    descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            file.write(content)
            file.flush()
            if path.exists() and (owner := path.stat()).st_uid != os.geteuid():
                os.fchown(file.fileno(), owner.st_uid, owner.st_gid)  # The masters' user must go on reading it.
            os.fsync(file.fileno())
        draft.replace(path)
    except BaseException:
        draft.unlink(missing_ok=True)
        raise
