"""What the command line needs to know to reach a cluster, and how settings are named. Pydantic is not imported here.

Reading every setting of every process takes a library that needs a tenth of a second to import. A verb that only
connects needs seven plain values, so their declarations are here, once: `settings.py` makes its own fields from them,
and `given` reads them from flags and variables by itself where nothing about them is unusual (docs/fast-paths.md).
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from holdfast.addresses import split_address
from holdfast.errors import BadValue
from holdfast.identity.secret_files import read_token

PREFIX = "HOLDFAST_"
CONFIG_VARIABLE = f"{PREFIX}CONFIG"
READ_FROM_TEXT = "File that holds the token, in the place of token; no other user may read it."
LONGEST_TIMEOUT = 86_400

_SECONDS = re.compile(r"\d{1,5}(\.\d{1,6})?", re.ASCII)


class BadSetting(BadValue):
    """A flag, a variable or a key of the settings file cannot be used; nothing was started."""


class ClientSettings(msgspec.Struct, frozen=True, kw_only=True):
    """The `[client]` settings."""

    address: Annotated[str, Meta(description="The cluster's address: HOST:PORT, or several with commas.")] = (
        "127.0.0.1:7070"
    )
    token: Annotated[str, Meta(description="Secret that the master asks for.")] = ""
    token_file: Annotated[Path | None, Meta(description=READ_FROM_TEXT)] = None
    tls_cert: Annotated[
        Path | None, Meta(description="Certificate (PEM) to present, where the masters ask for one.")
    ] = None
    tls_key: Annotated[Path | None, Meta(description="Its private key, where that is not in the same file.")] = None
    tls_ca: Annotated[
        Path | None,
        Meta(description="Certificates (PEM) of the authority that signed the masters'; with it, TLS is on."),
    ] = None
    timeout: Annotated[float, Meta(gt=0, le=LONGEST_TIMEOUT, description="Seconds that a whole call may take.")] = 30.0

    def __repr__(self) -> str:
        return f"ClientSettings(address={self.address!r}, timeout={self.timeout!r})"  # Never the token.


def flag_of(field: str) -> str:
    return "--" + field.replace("_", "-")


def variable_of(field: str) -> str:
    return PREFIX + field.upper()


def checked_address(text: str) -> str:
    if "://" not in text:
        for one in text.split(","):
            host_port = one.strip()
            split_address(host_port)
    return text


def with_token(given: Mapping[str, Any], sources: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """These settings, with the token of the source that wins: a flag wins over a variable, also as --token-file over
    HOLDFAST_TOKEN."""
    winning = next(one for one in sources if "token" in one or "token_file" in one)
    if "token" in winning and "token_file" in winning:
        raise BadSetting("token and token_file are both given, in the same way; give one of them")
    if "token" in winning:
        return {name: value for name, value in given.items() if name != "token_file"}
    try:
        return {**given, "token": read_token(Path(winning["token_file"]))}
    except BadValue as error:
        raise BadSetting(f"token_file: {error}") from None


def given(flags: Mapping[str, str]) -> ClientSettings | None:
    """The settings that these flags and the environment give: what `settings.load` makes of them.

    None where there is a settings file, or anything that it takes more to read, or that cannot be used: then it is for
    `settings.load` to read, or to say what is wrong."""
    if os.environ.get(CONFIG_VARIABLE) or any(not text for text in flags.values()):
        return None
    named = {}
    for variable, text in os.environ.items():
        if variable[: len(PREFIX)].upper() == PREFIX:
            if not variable.isupper():
                return None  # Pydantic takes variables in any letters, and knows which of two it takes.
            field = variable[len(PREFIX) :].lower()
            if text and field in ClientSettings.__struct_fields__:
                named[field] = text
    texts = {**named, **flags}
    if "token_file" in texts:
        texts = with_token(texts, [flags, named])
    try:
        return ClientSettings(**{field: _value(field, text) for field, text in texts.items()})
    except ValueError:
        return None


def _value(field: str, text: str) -> Any:
    if field == "address":
        return checked_address(text)
    if field == "token":
        return text
    if field != "timeout":
        return Path(text)
    if not _SECONDS.fullmatch(text) or not 0 < float(text) <= LONGEST_TIMEOUT:
        raise ValueError("more than a plain number of seconds")
    return float(text)
