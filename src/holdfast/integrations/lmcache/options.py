"""The options in LMCache's configuration: one table, the same keys for all three faces."""

from __future__ import annotations

import difflib
import os
import ssl
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, Self

from holdfast.client.arguments import checked_timeout, put_options
from holdfast.errors import HoldfastError
from holdfast.operations.masters import Masters

MOST_WORKERS = 64
LONGEST_PREFIX = 128
GIB = 1 << 30


class BadOption(ValueError):
    """A key or value of the configuration is wrong. The text names it and says what would be right."""


def _about(default: Any, text: str, secret: bool = False) -> Any:
    return field(default=default, metadata={"about": text}, repr=not secret)


@dataclass(frozen=True)
class LmcacheOptions:
    address: str = _about("", "masters as HOST:PORT, several with commas, or a coordination URL (HOLDFAST_ADDRESS)")
    token: str = _about("", "secret that the masters ask for (HOLDFAST_TOKEN); LMCache logs parameters", secret=True)
    token_file: str = _about("", "file that holds the secret, which is then in no log")
    timeout_s: float = _about(5.0, "seconds that a lookup, load or removal may take before it is a miss")
    store_timeout_s: float = _about(30.0, "seconds that a store may take before it has failed")
    retry_s: float = _about(0.5, "seconds between attempts to reach masters that do not answer")
    key_prefix: str = _about("lmcache", "first part of every key; instances with the same prefix share their objects")
    replicas: int = _about(1, "copies of every object, on as many nodes")
    soft_pin: bool = _about(False, "evict these objects after all that are not pinned")
    durability: str = _about("", "'durable', 'standby' or 'memory'; empty: what the cluster is set to")
    prefer: str = _about("", "nodes to store on while they have room, separated by commas")
    verify: bool = _about(True, "compare checksums of what is read")
    shared_memory: bool = _about(True, "map the memory of nodes on this machine, in place of TCP")
    workers: int = _about(2, "threads for reads, and as many for stores")
    tls_ca: str = _about("", "certificates (PEM) of the authority that signed the masters'; with it, TLS is on")
    tls_cert: str = _about("", "certificate (PEM) to present, where the masters ask for one")
    tls_key: str = _about("", "its private key, where that is not in the same file")
    max_capacity_gb: float = _about(0.0, "GiB that LMCache's own eviction may count on; 0: holdfast alone evicts")
    tracked_keys: int = _about(262_144, "stored keys whose end is reported to LMCache")
    sweep_s: float = _about(15.0, "seconds between looks at what the cluster has evicted")
    lookup_hold_s: float = _about(60.0, "native_plugin: seconds that a lookup keeps what it found, if no load follows")
    ping: bool = _about(False, "in-process mode: let LMCache stop its own memory cache too while no master answers")

    @classmethod
    def from_mapping(cls, given: Mapping[str, object], where: str = "adapter_params") -> Self:
        """Checked options. Text may stand for numbers and switches: a URL has nothing else."""
        known = {one.name: one for one in fields(cls)}
        values: dict[str, Any] = {}
        for name, value in given.items():
            if name not in known:
                close = difflib.get_close_matches(str(name), known, 1)
                hint = f"did you mean {close[0]!r}?" if close else f"known are {', '.join(known)}"
                raise BadOption(f"{where} has the key {name!r}, which holdfast does not know; {hint}")
            values[name] = _converted(name, value, known[name].default, where)
        options = cls(**values)
        options._check(where)
        return options

    def _check(self, where: str) -> None:
        try:
            Masters(self.reached_at)
            put_options(self.replicas, self.soft_pin, False, self.preferred, self.durability or None, False)
            for name in ("timeout_s", "store_timeout_s", "retry_s", "sweep_s", "lookup_hold_s"):
                checked_timeout(getattr(self, name))
        except (HoldfastError, ValueError, TypeError) as error:
            raise BadOption(f"{where}: {error}") from None
        if not 1 <= self.workers <= MOST_WORKERS:
            raise BadOption(f"{where}: workers must be 1 to {MOST_WORKERS}, not {self.workers}")
        if self.tracked_keys < 0 or self.max_capacity_gb < 0:
            raise BadOption(f"{where}: tracked_keys and max_capacity_gb cannot be negative")
        if not self.key_prefix or len(self.key_prefix.encode(errors="replace")) > LONGEST_PREFIX:
            raise BadOption(f"{where}: key_prefix must have 1 to {LONGEST_PREFIX} bytes")
        if not self.key_prefix.isprintable() or "@" in self.key_prefix:
            raise BadOption(f"{where}: key_prefix {self.key_prefix!r} must be printable and without '@'")

    @property
    def reached_at(self) -> str:
        return self.address or os.environ.get("HOLDFAST_ADDRESS") or "127.0.0.1:7070"

    @property
    def preferred(self) -> list[str]:
        return [name for part in self.prefer.split(",") if (name := part.strip())]

    @property
    def max_capacity_bytes(self) -> int:
        return int(self.max_capacity_gb * GIB)

    def secret(self) -> str:
        if self.token_file:
            try:
                return Path(self.token_file).read_text().strip()
            except OSError as error:
                raise BadOption(f"token_file cannot be read: {error}") from None
        return self.token or os.environ.get("HOLDFAST_TOKEN", "")

    def tls(self) -> ssl.SSLContext | None:
        if not self.tls_ca:
            if self.tls_cert:
                raise BadOption("tls_cert is given without tls_ca, which turns TLS on")
            return None
        try:
            context = ssl.create_default_context(cafile=self.tls_ca)
            if self.tls_cert:
                context.load_cert_chain(self.tls_cert, self.tls_key or None)
        except OSError as error:
            raise BadOption(f"the certificates of tls_ca, tls_cert and tls_key cannot be used: {error}") from None
        return context

    @classmethod
    def explained(cls) -> str:
        """One line per key, for LMCache's own help."""
        lines = [f"- {one.name} ({one.type}, default {one.default!r}): {one.metadata['about']}" for one in fields(cls)]
        return "\n".join(["holdfast takes in adapter_params:", *lines])


def _converted(name: str, value: object, default: object, where: str) -> object:
    """The value as the type of the default."""
    wanted = type(default)
    if wanted is bool and isinstance(value, str) and value.lower() in ("true", "false", "1", "0"):
        return value.lower() in ("true", "1")
    if wanted is str and name == "prefer" and isinstance(value, (list, tuple)):
        return ",".join(map(str, value))
    if wanted in (int, float) and isinstance(value, (int, float, str)) and not isinstance(value, bool):
        try:
            number = float(value)
        except ValueError:
            number = float("nan")
        if number == number and (wanted is float or number.is_integer()):
            return wanted(number)
    elif wanted in (str, bool) and isinstance(value, wanted):
        return value
    raise BadOption(f"{where}: {name} must be {_called(wanted)}, not {value!r}")


def _called(kind: type) -> str:
    return {str: "text", bool: "true or false", int: "a whole number", float: "a number"}[kind]
