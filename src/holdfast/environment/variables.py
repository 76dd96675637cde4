"""Variables that begin as ours do and that nothing reads: a misspelt one would be ignored in silence.

The names of all settings are written down here, because reading them from the declarations imports pydantic, which
takes longer than many a command. `tests/environment/test_variables.py` holds the list equal to the declarations.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping

from holdfast.environment.client_settings import CONFIG_VARIABLE, PREFIX, variable_of

_FIELDS = """
address advertise block_tokens busy_poll_us clients cluster coordination copy_bytes_per_second copy_window_bytes
data_dir degraded_puts disk disk_away_ms disk_size durability early_takeover engine events events_replay events_topic
evict_soft_pinned eviction_margin force grant_timeout_ms high_watermark http http_hosts identities insecure keep
layers leader_ttl_ms lease_share lease_sync lease_ttl_ms listen log_format log_level masters max_connections
max_connections_per_address max_connections_per_identity max_size memory mooncake_http name new_history new_tokens
nodes objects offload_ahead picture plot prefix_tokens preset presets quick rate ready_file renewal_interval_ms
report_interval_ms requests seconds seed segments session_jeopardy_ms session_lease_ms session_reply_left_ms
shared_grant_bytes size snapshot_bytes snapshots socket_dir soft_pin_ttl_ms standby_eviction standby_eviction_grace_ms
timeout tls_ask_clients tls_ca tls_cert tls_key token token_file trace traces urgent_renewal_ms value_size width
write_window_bytes
"""
FIELDS = frozenset(_FIELDS.split())
"""The fields of all settings, of all processes."""
OTHERS = frozenset(
    f"{PREFIX}{name}"
    for name in (
        "DEBUG",
        "COORDINATION_PASSWORD",
        "PARENT_PID",
        "AS_MOONCAKE",
        "MOONCAKE_SEGMENTS",
        "MOONCAKE_PROBES",
        "MOONCAKE_PUT_TIMEOUT",
        "UID",  # deploy/: whom the containers run as.
        "CHAOS_INSIDE",  # chaos/
        "TRACE",  # benchmarks/
    )
) | {CONFIG_VARIABLE}
OF_KUBERNETES = re.compile(r".*(_SERVICE_HOST|_SERVICE_PORT.*|_PORT|_PORT_\d+_(TCP|UDP).*)")
"""It sets these in every container, for each service; a service may be called holdfast."""


def unknown(environment: Mapping[str, str]) -> list[str]:
    """The variables that begin as ours do and that nothing reads, in any letters, as pydantic takes them."""
    ours = [name for name in environment if name[: len(PREFIX)].upper() == PREFIX]
    return sorted(name for name in ours if name.upper() not in OTHERS and not _is_read(name.upper()))


def _is_read(name: str) -> bool:
    return name[len(PREFIX) :].lower() in FIELDS or OF_KUBERNETES.fullmatch(name) is not None


def told(names: Iterable[str]) -> str:
    """A sentence that names them, each with the one that may be meant."""
    import difflib  # For those who misspell.

    known = [*map(variable_of, FIELDS), *OTHERS]
    parts = []
    for name in names:
        close = difflib.get_close_matches(name.upper(), known, 1, 0.8)
        parts.append(f"{name} (is {close[0]} meant?)" if close else name)
    return f"nothing reads {', '.join(parts)}; unset it, or correct its name"


def unknown_told() -> str:
    """Empty if every variable is read, or if a process that has told it started this one."""
    if os.environ.get(f"{PREFIX}PARENT_PID"):
        return ""
    found = unknown(os.environ)
    return told(found) if found else ""
