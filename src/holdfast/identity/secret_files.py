"""Files that hold secrets: tokens and identities. They are read only if no other user can read or change them."""

from __future__ import annotations

import os
import stat
from pathlib import Path

from holdfast.errors import BadValue

OTHERS = stat.S_IRWXG | stat.S_IRWXO
TOKEN_BYTES = 4096
"""The most bytes of a file that holds one token."""


class BadSecretFile(BadValue):
    """A file of secrets cannot be read, or others could have read or changed it; nothing of it is used."""


def read_secret_file(path: Path, most_bytes: int) -> str:
    """The text of the file. The error names the file and what to do, and quotes nothing of its content."""
    try:
        with path.open("rb") as file:
            found = os.fstat(file.fileno())
            if found.st_mode & OTHERS:
                raise BadSecretFile(
                    f"other users may read or change {path} (mode {stat.S_IMODE(found.st_mode):04o}), which holds "
                    f"secrets; nothing of it is used. Close it: chmod 600 {path}"
                )
            content = file.read(most_bytes + 1)
    except OSError as error:
        raise BadSecretFile(f"{path} cannot be read: {error.strerror}; give a file that this user can read") from None
    if len(content) > most_bytes:
        raise BadSecretFile(f"{path} has more than {most_bytes:,} bytes, the most there may be; nothing of it is used")
    try:
        return content.decode()
    except UnicodeDecodeError:
        raise BadSecretFile(f"{path} is not UTF-8 text; nothing of it is used") from None


def read_token(path: Path) -> str:
    """The token in a file of its own; blanks and line breaks around it do not count."""
    token = read_secret_file(path, TOKEN_BYTES).strip()
    if not token:
        raise BadSecretFile(f"{path} is empty; write a token into it: holdfast token new NAME --role ROLE > {path}")
    if len(token.splitlines()) != 1:
        raise BadSecretFile(f"{path} has several lines; a file of a token holds that token and nothing else")
    return token
