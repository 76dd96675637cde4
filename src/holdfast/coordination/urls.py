"""URLs of coordination.

    memory://NAME                               in this process, for tests
    sqlite:///path/file.db?cluster=C            one file, given by its whole path; synchronous=normal
    etcd://h1:2379,h2:2379/CLUSTER              user, password_file, ca, cert, key (files), tls=on, compact=off
    zookeeper://h1:2181,h2:2181/CLUSTER         user, password_file, auth=digest|sasl, ca, cert, key (files), tls=on

`service=NAME` asks for the value that was published as `service/NAME` instead of the leader.

The password of the user is in a file (`password_file`), in HOLDFAST_COORDINATION_PASSWORD, or, for whoever must, in the
URL (`password`). URLs are shown `redacted`.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import parse_qsl, unquote, urlsplit

from holdfast.errors import BadValue
from holdfast.identity.secret_files import read_token

SCHEMES = ("memory", "sqlite", "etcd", "zookeeper")
PORTS = {"etcd": 2379, "zookeeper": 2181}
OPTIONS = {
    "memory": {"cluster", "service"},
    "sqlite": {"cluster", "service", "synchronous"},
    "etcd": {"service", "user", "password", "password_file", "ca", "cert", "key", "tls", "compact"},
    "zookeeper": {"service", "user", "password", "password_file", "auth", "ca", "cert", "key", "tls"},
}
FROM_ENVIRONMENT = "HOLDFAST_COORDINATION_PASSWORD"
_SECRETS = re.compile(r"((?:^|[?&;])password=)[^&;#\s]*", re.IGNORECASE)
_BEFORE_HOST = re.compile(r"(?<=://)[^/?#\s]*@")
CLUSTER = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,62}")


@dataclass(frozen=True, slots=True)
class Location:
    scheme: str
    cluster: str
    hosts: tuple[str, ...] = ()
    """For memory, the name of the store."""
    path: str = ""
    options: dict[str, str] = field(default_factory=dict, repr=False)

    @property
    def is_encrypted(self) -> bool:
        return bool(self.options.get("ca") or self.options.get("cert")) or self.options.get("tls") == "on"

    def login(self) -> tuple[str, str] | None:
        """User and password, or None. BadValue if the file of the password cannot be used."""
        user = self.options.get("user", "")
        if not user:
            return None
        if "password_file" in self.options:
            return user, read_token(Path(self.options["password_file"]))
        return user, self.options.get("password", os.environ.get(FROM_ENVIRONMENT, ""))

    @property
    def service(self) -> str:
        return self.options.get("service", "")


def is_coordination(address: str) -> bool:
    return address.partition("://")[0] in SCHEMES


def redacted(text: str) -> str:
    """The text, with the passwords of URLs in it replaced."""
    return _BEFORE_HOST.sub("***@", _SECRETS.sub(r"\1***", text))


def parse_location(url: str, cluster: str = "holdfast") -> Location:
    """Parse the URL. A cluster in the URL overrides the one given here."""
    parts = urlsplit(url)
    if parts.scheme not in SCHEMES:
        raise BadValue(
            f"{redacted(url)!r} is no place of coordination, which begins with one of {', '.join(SCHEMES)} and ://; "
            "the address of a master is written without these, like 127.0.0.1:7070"
        )
    options = dict(parse_qsl(parts.query, keep_blank_values=True))
    unknown = sorted(set(options) - OPTIONS[parts.scheme])
    if unknown:
        raise BadValue(f"{parts.scheme}:// has no option {unknown[0]!r}; it has {', '.join(OPTIONS[parts.scheme])}")
    if parts.scheme == "memory":
        return Location("memory", _named(options.get("cluster", cluster)), (parts.netloc,), "", options)
    if parts.scheme == "sqlite":
        if parts.netloc or not parts.path.strip("/"):
            raise BadValue(
                f"{redacted(url)!r}: write the whole path of the file, with three slashes: sqlite:///var/lib/h.db"
            )
        return Location("sqlite", _named(options.get("cluster", cluster)), (), unquote(parts.path), options)
    hosts = tuple(_with_port(host, parts.scheme) for host in parts.netloc.split(",") if host)
    if "password" in options and "password_file" in options:
        raise BadValue(f"{redacted(url)!r} has both password and password_file; give one")
    if options.get("auth", "digest") not in ("digest", "sasl"):
        raise BadValue(f"auth={options['auth']} is neither digest nor sasl")
    if not hosts:
        raise BadValue(f"{redacted(url)!r} names no host; write {parts.scheme}://HOST:{PORTS[parts.scheme]}/CLUSTER")
    return Location(parts.scheme, _named(unquote(parts.path.strip("/")) or cluster), hosts, "", options)


def _with_port(host: str, scheme: str) -> str:
    if "@" in host:
        raise BadValue("give user and password as ?user=...&password=..., not before the host")
    named = host.rpartition(":")[2].isdecimal() and not host.endswith("]")
    return host if named else f"{host}:{PORTS[scheme]}"


def _named(cluster: str) -> str:
    if CLUSTER.fullmatch(cluster) is None:
        raise BadValue(f"{cluster!r} cannot be the name of a cluster: letters, digits, '.', '_' and '-', at most 63")
    return cluster
