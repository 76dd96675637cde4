"""Every setting of every process. The defaults of those that decisions depend on are those of `core.rules`.

A field here is a flag (`--lease-ttl-ms`), an environment variable (`HOLDFAST_LEASE_TTL_MS`) and a key of a TOML
file (`lease_ttl_ms` in the table of its process: `[master]`, `[node]`, `[up]`, `[demo]`, `[lab]`, `[client]`). A flag
wins over the environment, the environment over the file, the file over the default. An unknown or invalid setting is
refused by name, before anything starts: a misspelt key that is silently ignored would be found in production.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, NamedTuple, TypeVar, get_args, get_type_hints, overload

from msgspec import Meta
from pydantic import AfterValidator, BeforeValidator, Field, ValidationError, create_model, model_validator
from pydantic_settings import BaseSettings, EnvSettingsSource, SettingsConfigDict

from holdfast.addresses import split_address
from holdfast.core.rules import DEFAULTS, LeaseSync, StandbyEviction
from holdfast.environment.client_settings import (
    PREFIX,
    READ_FROM_TEXT,
    BadSetting,
    ClientSettings,
    checked_address,
    flag_of,
    variable_of,
    with_token,
)

__all__ = ["PREFIX", "BadSetting", "ClientSettings", "flag_of", "variable_of"]  # Names of `client_settings`, here too.

MIB = 1 << 20
GIB = 1 << 30
NO_VARIABLE = "="
"""A prefix that no variable can have: the name of a variable ends at its first `=`."""

_UNITS = {"": 0, "k": 10, "m": 20, "g": 30, "t": 40, "p": 50}
_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([kmgtp]?)(?:i?b)?", re.IGNORECASE | re.ASCII)
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}", re.ASCII)


def parse_size(given: object) -> int:
    """Bytes from `4GiB`, `4GB`, `512MB` or `1048576`. Units are powers of 1024 with and without the `i`."""
    if isinstance(given, int) and not isinstance(given, bool):
        return given
    matched = _SIZE.fullmatch(given.strip()) if isinstance(given, str) else None
    if matched is None:
        raise ValueError(f"{given!r} is not a size: write it like 4GiB, 512MB or 1048576")
    number, unit = matched.groups()
    shift = _UNITS[unit.lower()]
    return int(number) << shift if number.isdigit() else int(float(number) * (1 << shift))


def _listen(text: str) -> str:
    split_address(text)
    return text


def _advertise(text: str) -> str:
    return _listen(text) if text else text


def _name(text: str) -> str:
    if not _NAME.fullmatch(text):
        raise ValueError(f"{text!r} is not a name: use up to 63 letters, digits, dots, dashes and underscores")
    return text


def _shared_coordination(text: str) -> str:
    if text.startswith("memory:"):
        raise ValueError("memory:// is one process's own, so that no other master could follow; leave it out")
    return text


Size = Annotated[int, BeforeValidator(parse_size), Field(gt=0)]
Listen = Annotated[str, AfterValidator(_listen)]
Address = Annotated[str, AfterValidator(checked_address)]
Name = Annotated[str, AfterValidator(_name)]
Coordination = Annotated[str, AfterValidator(_shared_coordination)]
Positive = Annotated[int, Field(gt=0)]
PresetName = Literal["follow", "renew-all", "delayed", "mixed", "timer", "promote-only"]
LogLevel = Literal["debug", "info", "warning", "error"]
LogFormat = Literal["auto", "console", "json"]


class Preset(NamedTuple):
    """A named way in which standbys learn of leases and evictions."""

    lease_sync: LeaseSync
    standby_eviction: StandbyEviction
    grace_ms: int | None = 0
    """None for the length of a lease."""


PRESETS: dict[PresetName, Preset] = {
    "follow": Preset("batched", "follow"),
    "renew-all": Preset("every", "independent"),
    "delayed": Preset("off", "independent", None),
    "mixed": Preset("every", "independent", 100),
    "timer": Preset("batched", "independent"),
    "promote-only": Preset("off", "none"),
}


class Settings(BaseSettings):
    """Base of all settings: where they come from."""

    table: ClassVar[str]
    model_config = SettingsConfigDict(env_prefix=PREFIX, env_ignore_empty=True, extra="forbid", frozen=True)


class MasterSettings(Settings):
    table = "master"

    listen: Listen = Field("127.0.0.1:7070", description="Where clients and nodes connect. Port 0 is any free one.")
    http: Listen = Field("127.0.0.1:7080", description="Where the dashboard, REST and /metrics are served.")
    http_hosts: str = Field(
        "", description="Names by which HTTP is asked, beside localhost and addresses, with commas between them."
    )
    mooncake_http: Annotated[str, AfterValidator(_advertise)] = Field(
        "", description="HOST:PORT for the HTTP paths and metric names of a Mooncake master. Empty: none."
    )
    events: Annotated[str, AfterValidator(_advertise)] = Field(
        "", description="HOST:PORT where object events are published (ZeroMQ PUB). Empty: none are."
    )
    events_replay: Annotated[str, AfterValidator(_advertise)] = Field(
        "", description="HOST:PORT where missed object events can be asked for again (ZeroMQ ROUTER). Empty: nowhere."
    )
    events_topic: str = Field("holdfast", description="The topic of object events.")
    coordination: str = Field("memory://", description="Where masters elect a primary and keep the log.")
    name: Name = Field("master-1", description="This master's name; each in a cluster has its own.")
    cluster: Name = Field("holdfast", description="The cluster's name, where the URL of coordination has none.")
    data_dir: Path | None = Field(None, description="Directory for what must outlive the process.")
    advertise: Annotated[str, AfterValidator(_advertise)] = Field(
        "", description="HOST:PORT that others are told, where it differs from --listen."
    )
    leader_ttl_ms: Annotated[int, Field(ge=500)] = Field(
        5_000, description="Silence after which a standby takes over without proof of the primary's end."
    )
    early_takeover: bool = Field(
        True, description="Take over at once when the primary's port is refused; off where something stands between."
    )
    snapshots: str = Field(
        "", description="Where all masters share snapshots: s3://bucket/prefix?endpoint=URL, or file:///directory."
    )
    snapshot_bytes: Size = Field(64 * MIB, description="How much the log grows between two snapshots.")
    new_history: bool = Field(
        False, description="Begin empty if the log is empty, though another history is known here. To be given once."
    )
    lease_ttl_ms: Positive = Field(
        DEFAULTS.lease_ttl_ms, description="How long a read keeps its object from eviction and removal."
    )
    soft_pin_ttl_ms: Positive = Field(DEFAULTS.soft_pin_ttl_ms, description="How long a soft pin lasts without a read.")
    grant_timeout_ms: Positive = Field(
        DEFAULTS.grant_timeout_ms, description="How long a writer may be silent before its put ends."
    )
    shared_grant_bytes: Size = Field(
        DEFAULTS.shared_grant_bytes, description="Memory that a client takes at once for small puts."
    )
    write_window_bytes: Size = Field(
        DEFAULTS.write_window_bytes, description="The most memory that one client may hold unwritten."
    )
    high_watermark: float = Field(
        DEFAULTS.high_watermark, gt=0, le=1, description="Share of memory in use at which eviction starts."
    )
    eviction_margin: float = Field(
        DEFAULTS.eviction_margin, ge=0, lt=1, description="How far below the watermark eviction frees."
    )
    offload_ahead: float = Field(
        DEFAULTS.offload_ahead,
        ge=0,
        le=1,
        description="Share of memory, the longest unused, that is kept on disks before it must leave.",
    )
    lease_share: float = Field(
        DEFAULTS.lease_share, ge=0, le=1, description="Share of the memory that may be leased; reads beyond it copy."
    )
    evict_soft_pinned: bool = Field(
        DEFAULTS.evict_soft_pinned, description="Evict soft-pinned objects when nothing else is left."
    )
    degraded_puts: bool = Field(
        DEFAULTS.degraded_puts,
        description="Store puts with fewer copies than they ask for while nodes are away; the rest is made afterwards.",
    )
    session_lease_ms: Annotated[int, Field(ge=200)] = Field(
        DEFAULTS.session_lease_ms, description="How long a node's session is safe without an answer from the master."
    )
    session_reply_left_ms: Positive = Field(
        DEFAULTS.session_reply_left_ms,
        description="How much of that is left when the master answers a node's keepalive.",
    )
    session_jeopardy_ms: Annotated[int, Field(ge=0)] = Field(
        DEFAULTS.session_jeopardy_ms,
        description="How much longer a node may be silent before its memory is void: a failover's time.",
    )
    report_interval_ms: Annotated[int, Field(ge=50)] = Field(
        DEFAULTS.report_interval_ms, description="How often a node reports its usage and counters."
    )
    preset: PresetName = Field(
        "follow", description="How standbys learn of leases and evictions; docs/presets.md tells which suits when."
    )
    lease_sync: LeaseSync | None = Field(
        None, description="How standbys learn of renewed leases, where it is not as the preset says."
    )
    standby_eviction: StandbyEviction | None = Field(
        None, description="Who evicts on a standby, where it is not as the preset says."
    )
    standby_eviction_grace_ms: Annotated[int, Field(ge=0)] | None = Field(
        None,
        description="How long after a lease's end a standby that evicts by itself waits, if not as the preset says.",
    )
    renewal_interval_ms: Annotated[int, Field(ge=100)] = Field(
        DEFAULTS.renewal_interval_ms,
        description="How often renewed leases are told to standbys, where they are told together.",
    )
    urgent_renewal_ms: Annotated[int, Field(ge=0)] = Field(
        DEFAULTS.urgent_renewal_ms, description="A renewal of a lease that had less than this left is told at once."
    )
    copy_bytes_per_second: Annotated[int, BeforeValidator(parse_size), Field(ge=0)] = Field(
        DEFAULTS.copy_bytes_per_second,
        description="How fast a node copies for recovery, draining and the disk tier; 0: as fast as it goes.",
    )
    copy_window_bytes: Size = Field(
        DEFAULTS.copy_window_bytes, description="The most that is being copied to one node at once."
    )
    disk_away_ms: Positive = Field(
        DEFAULTS.disk_away_ms, description="How long the objects on a disk are kept while its node is away."
    )
    traces: bool = Field(
        False, description="Send OpenTelemetry spans of all requests to where the OTEL_* variables say; needs [otel]."
    )
    durability: Literal["durable", "standby", "memory"] = Field(
        "durable",
        description="What an acknowledged put waits for: durable (the log), standby (a standby's memory) or memory "
        "(nothing).",
    )
    token: str = Field("", repr=False, description="Secret that clients and nodes must show. Empty: none is asked.")
    token_file: Path | None = Field(None, description=READ_FROM_TEXT)
    identities: Path | None = Field(
        None, description="File of those who may connect, and as what; the token is then this master's own."
    )
    tls_cert: Path | None = Field(None, description="Certificate (PEM) to present; with it, TLS between hosts is on.")
    tls_key: Path | None = Field(None, description="Its private key, where that is not in the same file.")
    tls_ca: Path | None = Field(None, description="Certificates (PEM) of the authority that signed the others'.")
    tls_ask_clients: bool = Field(False, description="Let in only clients and nodes with a certificate of tls_ca's.")
    insecure: bool = Field(
        False, description="Listen beyond this machine although anybody may connect, or nothing is encrypted."
    )
    busy_poll_us: Annotated[int, Field(ge=0, le=10_000)] = Field(
        100, description="How long to look for the next request before sleeping; 0 saves CPU, and answers later."
    )
    max_connections: Positive = Field(
        20_000, description="The most connections, as far as the limit of descriptors allows; some are kept for nodes."
    )
    max_connections_per_address: Annotated[int, Field(ge=0)] = Field(
        0, description="The most connections from one address; 0: three quarters of what clients may have."
    )
    max_connections_per_identity: Annotated[int, Field(ge=0)] = Field(
        0, description="The most connections of one identity; 0: three quarters of what clients may have."
    )
    ready_file: Path | None = Field(None, description="File for the real addresses, as JSON, once it serves.")
    log_level: LogLevel = Field("info", description="debug, info, warning or error.")
    log_format: LogFormat = Field("auto", description="console, json, or auto: console on a terminal.")

    @model_validator(mode="after")
    def _answers_within_the_lease(self) -> MasterSettings:
        if self.session_reply_left_ms >= self.session_lease_ms:
            raise ValueError(
                f"a keepalive must be answered before its lease ends: session_reply_left_ms "
                f"({self.session_reply_left_ms}) must be less than session_lease_ms ({self.session_lease_ms})"
            )
        return self


class NodeSettings(Settings):
    table = "node"

    address: Address = Field("127.0.0.1:7070", description="The cluster's address: its masters.")
    listen: Listen = Field("127.0.0.1:7071", description="Where clients on other hosts read and write bytes.")
    advertise: Annotated[str, AfterValidator(_advertise)] = Field(
        "", description="HOST:PORT that clients are told, where it differs from --listen."
    )
    http: Annotated[str, AfterValidator(_advertise)] = Field(
        "", description="HOST:PORT where /metrics, /healthz and /readyz are served. Empty: nowhere."
    )
    http_hosts: str = Field(
        "", description="Names by which HTTP is asked, beside localhost and addresses, with commas between them."
    )
    identities: Path | None = Field(
        None, description="File of those who may ask --http, as the masters'; without it, whoever shows the token."
    )
    name: Name = Field("node-1", description="This node's name; each in a cluster has its own.")
    size: Size = Field(GIB, description="Memory to lend, like 4GiB.")
    max_size: Annotated[int, BeforeValidator(parse_size), Field(ge=0)] = Field(
        0, description="The most that resizing may make it lend; 0 for all memory of the machine."
    )
    segments: Annotated[int, Field(ge=1, le=1024)] = Field(1, description="Pieces that the memory is lent in.")
    disk: Path | None = Field(None, description="Directory for objects that leave memory; it outlives the node.")
    disk_size: Size = Field(10 * GIB, description="The most that --disk may take, like 100GiB.")
    force: bool = Field(False, description="Take memory and disk space even if the machine seems to lack them.")
    socket_dir: Path | None = Field(None, description="Directory of the Unix socket for clients on this host.")
    token: str = Field("", repr=False, description="Secret that the master asks for.")
    token_file: Path | None = Field(None, description=READ_FROM_TEXT)
    tls_cert: Path | None = Field(None, description="Certificate (PEM) to present; with it, TLS between hosts is on.")
    tls_key: Path | None = Field(None, description="Its private key, where that is not in the same file.")
    tls_ca: Path | None = Field(None, description="Certificates (PEM) of the authority that signed the others'.")
    tls_ask_clients: bool = Field(False, description="Let in only clients with a certificate of tls_ca's.")
    insecure: bool = Field(
        False, description="Listen beyond this machine although anybody may connect, or nothing is encrypted."
    )
    ready_file: Path | None = Field(None, description="File for the real addresses, as JSON, once it serves.")
    max_connections: Positive = Field(1024, description="Clients that may be connected at once.")
    log_level: LogLevel = Field("info", description="debug, info, warning or error.")
    log_format: LogFormat = Field("auto", description="console, json, or auto: console on a terminal.")


class UpSettings(Settings):
    table = "up"

    data_dir: Path = Field(
        Path("~/.local/share/holdfast"), description="Directory for what must outlive the processes."
    )
    size: Size = Field(GIB, description="Memory that each node lends, like 4GiB.")
    force: bool = Field(False, description="Take the memory even if the machine seems to lack it.")
    listen: Listen = Field("127.0.0.1:7070", description="Where clients connect. Port 0 is any free one.")
    http: Listen = Field("127.0.0.1:7080", description="Where the dashboard, REST and /metrics are served.")
    masters: Annotated[int, Field(ge=1, le=5)] = Field(2, description="Masters to run: one primary, the others follow.")
    nodes: Annotated[int, Field(ge=1, le=64)] = Field(1, description="Nodes to run; they take the ports from 7071 on.")
    coordination: Coordination = Field(
        "", description="Where masters elect a primary and keep the log; without it, a file in the data directory."
    )
    preset: PresetName | None = Field(
        None, description="How standbys learn of leases and evictions; without it, as the masters' settings say."
    )
    new_history: bool = Field(
        False, description="Begin empty if the log is empty, though another history is known here. To be given once."
    )
    token: str = Field("", repr=False, description="Secret that clients must show. Empty: none is asked.")
    token_file: Path | None = Field(None, description=READ_FROM_TEXT)
    identities: Path | None = Field(
        None, description="File of those who may connect, and as what; the token is then the masters' and nodes' own."
    )
    insecure: bool = Field(
        False, description="Listen beyond this machine although anybody may connect, or nothing is encrypted."
    )
    ready_file: Path | None = Field(
        None, description="File for all addresses and process ids, as JSON, once it serves."
    )
    log_level: LogLevel = Field("warning", description="debug, info, warning or error.")


class DemoSettings(Settings):
    table = "demo"

    objects: Annotated[int, Field(ge=10, le=10_000_000)] = Field(2_000, description="Objects to write.")
    value_size: Size = Field(64 << 10, description="Size of each object, like 64KiB.")
    clients: Annotated[int, Field(ge=1, le=64)] = Field(2, description="Clients that write at once.")
    seconds: Annotated[float, Field(gt=0, le=3_600)] = Field(6.0, description="How long the writing shall last.")
    coordination: Coordination = Field(
        "", description="Where masters elect a primary and keep the log; without it, a file that is removed afterwards."
    )
    keep: bool = Field(False, description="Leave the cluster running afterwards, until Ctrl-C.")
    engine: bool = Field(False, description="Run a small language model instead (needs torch), with the flags below.")
    prefix_tokens: Annotated[int, Field(ge=1, le=1_000_000)] = Field(
        4_096, description="With --engine: tokens that all requests begin with; 16 more follow."
    )
    block_tokens: Annotated[int, Field(ge=1, le=65_536)] = Field(
        256, description="With --engine: tokens whose KV is one object."
    )
    new_tokens: Annotated[int, Field(ge=1, le=10_000)] = Field(
        16, description="With --engine: tokens to generate and to compare."
    )
    layers: Annotated[int, Field(ge=1, le=128)] = Field(4, description="With --engine: layers of the model.")
    width: Annotated[int, Field(ge=64, le=16_384)] = Field(
        512, description="With --engine: width of the model, a multiple of 64."
    )
    seed: int = Field(1, description="With --engine: of the model's weights and of the prompt.")
    picture: Path | None = Field(None, description="With --engine: file for a picture of the result (SVG).")


class LabSettings(Settings):
    table = "lab"

    presets: str = Field("", description="Presets to run, with commas between them; without it, all.")
    trace: Path | None = Field(None, description="Requests to replay, a JSON object with hash_ids a line.")
    requests: Annotated[int, Field(ge=20)] = Field(4_000, description="Requests to make, or to take of the trace.")
    rate: Annotated[float, Field(ge=0)] = Field(
        100, description="Requests a second, so that presets can be compared; 0 for as fast as possible."
    )
    value_size: Size = Field(16 << 10, description="Size of each block, like 16KiB.")
    memory: Annotated[float, Field(gt=0.01, le=10)] = Field(
        0.3, description="Memory of the node, as a share of what all blocks would take."
    )
    lease_ttl_ms: Annotated[int, Field(ge=50)] = Field(1_000, description="How long a read keeps its block.")
    seed: int = Field(1, description="Of the requests, where no trace is given.")
    coordination: Coordination = Field(
        "", description="Where masters elect a primary and keep the log; without it, a file that is removed afterwards."
    )
    plot: Path | None = Field(None, description="File for a picture of the results (PNG; needs the lab extra).")
    quick: bool = Field(False, description="A small workload: to see that it works; its figures mean little.")


def _client_table() -> type[Settings]:
    """The declarations of `ClientSettings` as a table like the others."""
    fields: dict[str, Any] = {}
    for name, hint in get_type_hints(ClientSettings, include_extras=True).items():
        plain, meta = get_args(hint)
        assert isinstance(meta, Meta)
        default = ClientSettings.__struct_defaults__[len(fields)]
        field = Field(default, repr=name != "token", description=meta.description)
        fields[name] = (Annotated[plain, Field(gt=meta.gt, le=meta.le)] if meta.gt is not None else plain, field)
    fields["address"] = (Address, fields["address"][1])
    table: type[Settings] = create_model("ClientTable", __base__=Settings, **fields)
    table.table = "client"
    return table


ClientTable = _client_table()
MODELS: dict[str, type[Settings]] = {
    model.table: model for model in (MasterSettings, NodeSettings, UpSettings, DemoSettings, LabSettings, ClientTable)
}

AnySettings = TypeVar("AnySettings", bound=Settings)


@overload
def load(model: type[ClientSettings], flags: Mapping[str, Any], config: Path | None = None) -> ClientSettings: ...


@overload
def load(model: type[AnySettings], flags: Mapping[str, Any], config: Path | None = None) -> AnySettings: ...


def load(model: type[Any], flags: Mapping[str, Any], config: Path | None = None) -> Any:
    """The settings of one process, from its flags, the environment and the file, in this order of precedence. A token
    in a file of its own has been read: `token` is the token, wherever it came from."""
    if model is not ClientSettings:
        return _load(model, flags, config)
    read = _load(ClientTable, flags, config)
    return ClientSettings(**{name: getattr(read, name) for name in ClientTable.model_fields})


def _load(model: type[AnySettings], flags: Mapping[str, Any], config: Path | None) -> AnySettings:
    filed = read_file(config).get(model.table, {}) if config is not None else {}
    named = EnvSettingsSource(model)()
    given = {**filed, **named, **flags}
    if "token_file" in given:
        given = with_token(given, [flags, named, filed])
    try:
        return model(**given)
    except ValidationError as error:
        raise BadSetting("; ".join(_faults(error, flags, named, config))) from error


def read_file(path: Path) -> dict[str, dict[str, Any]]:
    """The tables of a settings file; every table and key is checked to be known."""
    try:
        tables = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise BadSetting(f"the settings file {path} cannot be read: {error.strerror}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise BadSetting(f"the settings file {path} is not TOML: {error}") from error
    unknown = unknown_keys(tables)
    if unknown:
        raise BadSetting(
            f"the settings file {path} has keys that nothing reads: {', '.join(unknown)}; "
            f"correct or remove them (tables are {', '.join(f'[{table}]' for table in MODELS)})"
        )
    return tables


def unknown_keys(tables: Mapping[str, Any]) -> list[str]:
    """The tables and keys of a settings file that nothing reads."""
    unknown = []
    for table, keys in tables.items():
        if table not in MODELS or not isinstance(keys, dict):
            unknown.append(f"[{table}]" if isinstance(keys, dict) else table)
        else:
            unknown += [f"{table}.{key}" for key in keys if key not in MODELS[table].model_fields]
    return sorted(unknown)


def check_table(model: type[AnySettings], filed: Mapping[str, Any]) -> AnySettings | list[str]:
    """The settings that a table of a file gives by itself, without variables and flags, or all that is wrong with them.
    No file that it names is read."""
    try:
        return model(**{**filed, "_env_prefix": NO_VARIABLE})
    except ValidationError as error:
        return _faults(error, {}, {}, None)


def _faults(
    error: ValidationError, flags: Mapping[str, Any], named: Mapping[str, Any], config: Path | None
) -> list[str]:
    said = []
    for fault in error.errors():
        field = str(fault["loc"][0]) if fault["loc"] else ""
        if field in flags:
            source = flag_of(field)
        elif field in named:
            source = variable_of(field)
        else:
            source = f"{field} in {config}" if config is not None else field
        text = fault["msg"].removeprefix("Value error, ")
        # Our own texts quote the given value; the library's do not. A secret is never quoted.
        quoted = "" if fault["type"] == "value_error" or field == "token" else f" (given: {fault['input']!r})"
        said.append(f"{source}: {text}{quoted}" if source else text + quoted)
    return said
