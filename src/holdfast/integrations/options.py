"""Options of an engine's configuration: read, checked, and turned into a connection.

An engine is configured once and restarted rarely, so a misspelt key must not be passed over: it is an error that names
the nearest known one. Secrets may stay out of configurations: HOLDFAST_ADDRESS and HOLDFAST_TOKEN are read where the
key is missing.
"""

from __future__ import annotations

import difflib
import os
import time
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Self

import holdfast
from holdfast.errors import BadValue, Unreachable
from holdfast.ids import MAX_REPLICAS
from holdfast.instant import now_seconds
from holdfast.transport.tls import client_context

if TYPE_CHECKING:
    from holdfast.client.cache import Cache

RETRY_SECONDS = 0.25
LONGEST_SECONDS = 86_400.0


@dataclass(frozen=True, slots=True)
class Options:
    """Options that all engines share, by the names that they have in an engine's configuration."""

    address: str = "127.0.0.1:7070"
    """Masters as HOST:PORT, several with commas."""
    token: str = ""
    timeout: float = 5.0
    """Seconds that one batch may take; then its keys are misses. Long enough to outlast a failover."""
    connect_timeout: float = 30.0
    """Seconds to wait for a master when the engine starts."""
    namespace: str = ""
    """Goes in front of all keys: keeps deployments apart that share a cluster and must not share blocks."""
    replicas: int = 1
    soft_pin: bool = False
    verify: bool = True
    """Compare the checksum of all that is read."""
    shared_memory: bool = True
    tls_ca: str = ""
    tls_cert: str = ""
    tls_key: str = ""

    @classmethod
    def read(cls, given: Mapping[str, object], where: str, of_engine: frozenset[str] = frozenset()) -> Self:
        """From an engine's configuration. `of_engine`: keys beside ours that the engine itself reads."""
        kinds = {field.name: type(field.default) for field in fields(cls)}
        for key in given:
            if key not in kinds and key not in of_engine:
                raise BadValue(f"{where}: {_unknown(key, sorted(kinds))}")
        values = {
            name: _checked(value, kinds[name], f"{where}: {name!r}") for name, value in given.items() if name in kinds
        }
        for name, variable in (("address", "HOLDFAST_ADDRESS"), ("token", "HOLDFAST_TOKEN")):
            if name not in values and os.environ.get(variable):
                values[name] = os.environ[variable]
        options = cls(**values)  # type: ignore[arg-type]
        options._check_ranges(where)
        return options

    def _check_ranges(self, where: str) -> None:
        for name in ("timeout", "connect_timeout"):
            seconds = getattr(self, name)
            if not 0 < seconds <= LONGEST_SECONDS:
                raise BadValue(f"{where}: {name!r} is over 0 and at most {LONGEST_SECONDS:g} seconds, not {seconds:g}")
        if not 1 <= self.replicas <= MAX_REPLICAS:
            raise BadValue(f"{where}: 'replicas' is 1 to {MAX_REPLICAS}, not {self.replicas}")
        if len(self.namespace) > 100 or not self.namespace.isprintable():
            raise BadValue(f"{where}: 'namespace' is at most 100 printable characters, not {self.namespace[:120]!r}")
        if (self.tls_cert or self.tls_key) and not self.tls_ca:
            raise BadValue(f"{where}: 'tls_cert' and 'tls_key' need 'tls_ca', the authority that signed the masters'")

    def connect(self, engine: str) -> Cache:
        """A client, once a master answers: engines and masters may be started in any order."""
        tls = client_context(*map(_path, (self.tls_ca, self.tls_cert, self.tls_key))) if self.tls_ca else None
        give_up_at = now_seconds() + self.connect_timeout
        while True:
            try:
                cache = holdfast.connect(
                    self.address,
                    timeout=min(self.timeout, self.connect_timeout),
                    token=self.token,
                    tls=tls,
                    verify=self.verify,
                    shared_memory=self.shared_memory,
                )
            except Unreachable as error:
                if now_seconds() + RETRY_SECONDS >= give_up_at:
                    raise Unreachable(
                        f"{engine} is not connected to holdfast: no master answered at {self.address} within "
                        f"{self.connect_timeout:g} s ({error}). Start one there, or give its 'address'"
                    ) from error
                time.sleep(RETRY_SECONDS)
            else:
                cache.timeout = self.timeout
                return cache


def _path(text: str) -> Path | None:
    return Path(text) if text else None


def _unknown(key: str, known: list[str]) -> str:
    near = difflib.get_close_matches(key, known, 1)
    hint = f"did you mean {near[0]!r}?" if near else f"there are {', '.join(known)}"
    return f"unknown key {key!r}; {hint}"


def _checked(value: object, kind: type, what: str) -> object:
    """The value as its kind. Numbers may stand for switches, as engines write `"interface_v1": 1`."""
    if kind is bool and value in (0, 1, False, True):
        return bool(value)
    if kind is float and isinstance(value, int | float) and not isinstance(value, bool):
        return float(value)
    if kind in (str, int) and type(value) is kind:
        return value
    wanted = {bool: "true or false", float: "a number", int: "a whole number", str: "a text"}[kind]
    raise BadValue(f"{what} is {wanted}, not {value!r}")
