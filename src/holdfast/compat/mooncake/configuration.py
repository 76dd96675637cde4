"""Mooncake's settings: what `setup` is given, the JSON file, the MOONCAKE_* variables, and holdfast's own beside them.

`MooncakeConfig` is also what `mooncake.mooncake_config` has, which engines import. holdfast's own variables:

    HOLDFAST_AS_MOONCAKE           the cluster's address, instead of the one in Mooncake's settings; "on" keeps that one
    HOLDFAST_MOONCAKE_SEGMENTS     auto | on | off: whether `global_segment_size` starts a node (segment.py)
    HOLDFAST_MOONCAKE_PROBES       use | look | lease: what `is_exist` does to an object that is there
    HOLDFAST_MOONCAKE_PUT_TIMEOUT  seconds that a put may wait, for room above all
    HOLDFAST_TIMEOUT, HOLDFAST_TOKEN, HOLDFAST_TLS_CA, HOLDFAST_TLS_CERT, HOLDFAST_TLS_KEY    as for every client
"""

from __future__ import annotations

import json
import os
import re
import ssl
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from holdfast.transport.tls import client_context

SWITCH = "HOLDFAST_AS_MOONCAKE"
SWITCHED_ON = frozenset({"1", "on", "yes", "true"})
SEGMENTS = "HOLDFAST_MOONCAKE_SEGMENTS"
PROBES = "HOLDFAST_MOONCAKE_PROBES"
PUT_TIMEOUT = "HOLDFAST_MOONCAKE_PUT_TIMEOUT"

CALL_SECONDS = 10.0
"""An engine that waits longer than this could have computed again what it asks for."""
PUT_SECONDS = 5.0
DEFAULT_SEGMENT_BYTES = 3200 << 20
DEFAULT_BUFFER_BYTES = 1 << 30
HTTP_PORT = 9300

_SIZE = re.compile(r"\s*(\d+(?:\.\d*)?|\.\d+)\s*([kmgt]?)b?\s*", re.IGNORECASE | re.ASCII)
_SHIFTS = {"": 0, "k": 10, "m": 20, "g": 30, "t": 40}
_TRUE, _FALSE = {"true", "1", "yes", "on", "enable"}, {"false", "0", "no", "off", "disable", ""}


class BadSetup(ValueError):
    """A setting cannot be used; the text says which."""


def size_of(given: object) -> int:
    """Bytes from a number, `16MB`, `16 MB` or `4g`."""
    if isinstance(given, (int, float)) and not isinstance(given, bool):
        return int(given)
    matched = _SIZE.fullmatch(given) if isinstance(given, str) else None
    if matched is None:
        raise BadSetup(f"Invalid segment size: {given!r}; write it like 4GB, 512MB or 1048576")
    number, unit = matched.groups()
    return int(float(number) * (1 << _SHIFTS[unit.lower()])) if "." in number else int(number) << _SHIFTS[unit.lower()]


def truth_of(given: object) -> bool:
    if given is None or isinstance(given, (bool, int, float)):
        return bool(given)
    word = str(given).strip().lower()
    if word not in _TRUE | _FALSE:
        raise BadSetup(f"Invalid boolean value: {given!r}")
    return word in _TRUE


@dataclass
class MooncakeConfig:
    """The contents of Mooncake's JSON file."""

    local_hostname: str
    metadata_server: str
    global_segment_size: int
    local_buffer_size: int
    protocol: str
    device_name: str | None
    master_server_address: str
    enable_ssd_offload: bool = False
    ssd_offload_path: str = ""
    tenant_id: str = "default"
    enable_client_http_server: bool = False
    client_http_port: int = HTTP_PORT

    def __post_init__(self) -> None:
        named: object = self.protocol
        if not isinstance(named, str) or not named.strip():
            raise BadSetup(f"Invalid protocol: {self.protocol!r}; a name such as tcp or rdma is wanted")
        self.protocol = self.protocol.strip().lower()
        for name in ("global_segment_size", "local_buffer_size"):
            if getattr(self, name) < 0:
                raise BadSetup(f"Invalid {name}: {getattr(self, name)}; a size must be non-negative")
        for name in ("local_hostname", "metadata_server", "master_server_address"):
            value = getattr(self, name)
            if not isinstance(value, str) or not value.strip():
                raise BadSetup(f"Config field {name!r} must be a non-empty string, not {value!r}")

    @staticmethod
    def from_file(file_path: str) -> MooncakeConfig:
        return _config_of(json.loads(Path(file_path).read_text(encoding="utf-8")))

    @staticmethod
    def load_from_env() -> MooncakeConfig:
        """From the file that MOONCAKE_CONFIG_PATH names, or from the other MOONCAKE_* variables."""
        path = os.environ.get("MOONCAKE_CONFIG_PATH")
        if path is not None:
            return MooncakeConfig.from_file(path)
        if not os.environ.get("MOONCAKE_MASTER"):
            raise BadSetup("neither MOONCAKE_CONFIG_PATH nor MOONCAKE_MASTER is set")
        found = {field: os.environ[name] for field, name in _VARIABLES.items() if name in os.environ}
        return _config_of({"local_hostname": "localhost", "metadata_server": "P2PHANDSHAKE", **found})


_VARIABLES = {
    "local_hostname": "MOONCAKE_LOCAL_HOSTNAME",
    "metadata_server": "MOONCAKE_TE_META_DATA_SERVER",
    "global_segment_size": "MOONCAKE_GLOBAL_SEGMENT_SIZE",
    "local_buffer_size": "MOONCAKE_LOCAL_BUFFER_SIZE",
    "protocol": "MOONCAKE_PROTOCOL",
    "device_name": "MOONCAKE_DEVICE",
    "master_server_address": "MOONCAKE_MASTER",
    "enable_ssd_offload": "MOONCAKE_OFFLOAD_ENABLED",
    "ssd_offload_path": "MOONCAKE_OFFLOAD_FILE_STORAGE_PATH",
    "tenant_id": "MOONCAKE_TENANT_ID",
    "enable_client_http_server": "MOONCAKE_ENABLE_CLIENT_HTTP_SERVER",
    "client_http_port": "MOONCAKE_CLIENT_HTTP_PORT",
}


def _config_of(said: Mapping[str, Any]) -> MooncakeConfig:
    for name in ("local_hostname", "metadata_server", "master_server_address"):
        if name not in said:
            raise BadSetup(f"Missing required config field: {name}")
    tenant = said.get("tenant_id")
    path = said.get("ssd_offload_path")
    return MooncakeConfig(
        local_hostname=said["local_hostname"],
        metadata_server=said["metadata_server"],
        global_segment_size=size_of(said.get("global_segment_size", DEFAULT_SEGMENT_BYTES)),
        local_buffer_size=size_of(said.get("local_buffer_size", DEFAULT_BUFFER_BYTES)),
        protocol=said.get("protocol", "tcp"),
        device_name=said.get("device_name", ""),
        master_server_address=said["master_server_address"],
        enable_ssd_offload=truth_of(said.get("enable_ssd_offload", False)),
        ssd_offload_path="" if path is None else str(path),
        tenant_id="default" if tenant is None else str(tenant),
        enable_client_http_server=truth_of(said.get("enable_client_http_server", False)),
        client_http_port=int(said.get("client_http_port", HTTP_PORT)),
    )


@dataclass(frozen=True, slots=True)
class Setup:
    """The arguments of `setup` that mean something here."""

    hostname: str
    address: str
    segment_bytes: int
    buffer_bytes: int
    protocol: str = "tcp"
    tenant: str = "default"


def setup_of(said: Mapping[str, Any]) -> Setup:
    """From the arguments of `setup`, or from its dict. BadSetup for what cannot be used.

    LMCache writes `master_server_address` where Mooncake reads `master_server_addr`: both are understood."""
    hostname = said.get("local_hostname")
    if not isinstance(hostname, str) or not hostname:
        raise BadSetup("local_hostname is missing")
    asked = os.environ.get(SWITCH, "")
    own = "" if asked.lower() in SWITCHED_ON else asked
    address = own or said.get("master_server_addr") or said.get("master_server_address")
    segment, buffer = size_of(said.get("global_segment_size", 0)), size_of(said.get("local_buffer_size", 0))
    if segment < 0 or buffer < 0:
        raise BadSetup("a size must be non-negative")
    return Setup(
        hostname=hostname,
        address=str(address or ""),
        segment_bytes=segment,
        buffer_bytes=buffer,
        protocol=str(said.get("protocol") or "tcp"),
        tenant=str(said.get("tenant_id") or "default"),
    )


def seconds_of(variable: str, default: float) -> float:
    text = os.environ.get(variable, "")
    try:
        seconds = float(text) if text else default
    except ValueError:
        seconds = 0.0
    if not 0 < seconds <= 86_400:
        raise BadSetup(f"{variable}={text!r} is not a number of seconds")
    return seconds


def word_of(variable: str, words: tuple[str, ...]) -> str:
    """One of the words; the first is the default."""
    word = os.environ.get(variable, "").lower() or words[0]
    if word not in words:
        raise BadSetup(f"{variable}={word!r} is not one of {', '.join(words)}")
    return word


def tls_context() -> ssl.SSLContext | None:
    """As HOLDFAST_TLS_* say; None: no TLS."""
    authority, certificate, key = (
        Path(text) if (text := os.environ.get(f"HOLDFAST_TLS_{name}")) else None for name in ("CA", "CERT", "KEY")
    )
    return client_context(authority, certificate, key) if authority or certificate else None
