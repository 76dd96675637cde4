"""A cluster whose processes and clients have an identity each, from one file; and where a secret could show."""

from __future__ import annotations

import contextlib
import ssl
import urllib.error
import urllib.request
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Self

import msgspec

import holdfast
from holdfast.cli.cluster.masters import look
from holdfast.cli.connection import open_channel
from holdfast.client.cache import Cache
from holdfast.identity.new_tokens import NewEntry, append_entry, fresh_token
from holdfast.instant import now_seconds
from holdfast.transport.channel import Channel
from tests.failover.cluster import Cluster, Process

PATHS = ("/", "/healthz", "/readyz", "/metrics", "/api/v1/status", "/api/v1/nodes", "/api/v1/objects",
         "/api/v1/sessions", "/api/v1/events", "/api/v1/openapi.json")  # fmt: skip


class Keyring:
    """A file of identities, and a file for each token in it."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._folder = folder
        self.file = folder / "identities.toml"
        self.tokens: dict[str, str] = {}

    def add(self, name: str, *roles: str, **more: Any) -> str:
        self.tokens[name] = token = fresh_token()
        append_entry(self.file, NewEntry(name, roles, **more), token)
        path = self.path(name)
        path.write_text(token + "\n")
        path.chmod(0o600)
        return token

    @classmethod
    def of(cls, folder: Path, roles: Mapping[str, str], tenants: Iterable[str] = ()) -> Self:
        """Names with a role each, and a writer of each tenant."""
        keyring = cls(folder)
        for name, role in roles.items():
            keyring.add(name, role)
        for name in tenants:
            keyring.add(name, "writer", tenant=name)
        return keyring

    def path(self, name: str) -> Path:
        return self._folder / f"{name}.token"


class GuardedProcess(Process):
    """Asked for its status as an operator would."""

    operator = ""

    def status(self) -> dict[str, Any]:
        seen = look(self.address, self.operator).status
        return msgspec.structs.asdict(seen) if seen is not None else {}

    @contextlib.contextmanager
    def channel(self, client: int = 0, control: bool = False, looks: bool = False) -> Iterator[Channel]:
        """A raw connection to this very master, of the operator."""
        with contextlib.closing(open_channel(self.address, self.operator, now_seconds() + 10)) as channel:
            yield channel


class GuardedCluster(Cluster):
    """Masters and nodes show tokens of their own."""

    def __init__(self, folder: Path, url: str, keyring: Keyring, **more: Any) -> None:
        self.keyring = keyring
        super().__init__(folder, url, identities=keyring.file, **more)

    def new_process(self, kind: str, name: str, *flags: str) -> Process:
        made = GuardedProcess(
            kind, self._folder / name, "--name", name, "--token-file", str(self.keyring.path(name)), *flags
        )
        made.operator = self.keyring.tokens["operator"]
        return made

    def connect(self, address: str = "", **options: Any) -> Cache:
        return self.connect_as(str(options.pop("name", "operator")), address, **options)

    def connect_as(self, name: str, address: str = "", **options: Any) -> Cache:
        path = self.keyring.path(name)
        return holdfast.connect(address or self.address, token_file=path, **{"timeout": 30, **options})


def shown_everywhere(processes: Iterable[Process], token: str, tls: ssl.SSLContext | None = None) -> str:
    """All that these processes show: logs, command lines, and HTTP to whoever shows this token."""
    shown = {"Authorization": f"Bearer {token}"}
    scheme = "https" if tls is not None else "http"
    found = []
    for process in processes:
        found.append(process.said())
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            found.append(Path(f"/proc/{process.process.pid}/cmdline").read_text(errors="replace"))
        if process.ready_file.exists():
            found.append(process.ready_file.read_text())
        for path in PATHS if process.http and process.alive else ():
            for headers in (shown, {}):
                request = urllib.request.Request(f"{scheme}://{process.http}{path}", headers=headers)
                try:
                    with urllib.request.urlopen(request, timeout=20, context=tls) as answer:
                        found.append(answer.read().decode())
                except urllib.error.HTTPError as refused:  # What is refused must not show it either.
                    with refused:
                        found.append(refused.read().decode())
    return "\n".join(found)
