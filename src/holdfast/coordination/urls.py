"""URLs of coordination.

    memory://NAME                               in this process, for tests
    sqlite:///path/file.db?cluster=C            one file, given by its whole path; synchronous=normal
    etcd://h1:2379,h2:2379/CLUSTER              user, password, ca, cert, key (files), tls=on, compact=off
    zookeeper://h1:2181,h2:2181/CLUSTER

`service=NAME` asks for the value that was published as `service/NAME` instead of the leader.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from urllib.parse import parse_qsl, unquote, urlsplit

from holdfast.errors import BadValue

SCHEMES = ("memory", "sqlite", "etcd", "zookeeper")
PORTS = {"etcd": 2379, "zookeeper": 2181}
OPTIONS = {
    "memory": {"cluster", "service"},
    "sqlite": {"cluster", "service", "synchronous"},
    "etcd": {"service", "user", "password", "ca", "cert", "key", "tls", "compact"},
    "zookeeper": {"service"},
}
CLUSTER = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,62}")


@dataclass(frozen=True, slots=True)
class Location:
    scheme: str
    cluster: str
    hosts: tuple[str, ...] = ()
    """For memory, the name of the store."""
    path: str = ""
    options: dict[str, str] = field(default_factory=dict)

    @property
    def service(self) -> str:
        return self.options.get("service", "")


def is_coordination(address: str) -> bool:
    return address.partition("://")[0] in SCHEMES


def parse_location(url: str, cluster: str = "holdfast") -> Location:
    """Parse the URL. A cluster in the URL overrides the one given here."""
    parts = urlsplit(url)
    if parts.scheme not in SCHEMES:
        raise BadValue(f"{url!r} is no place of coordination: it begins with one of {', '.join(SCHEMES)} and ://")
    options = dict(parse_qsl(parts.query, keep_blank_values=True))
    unknown = sorted(set(options) - OPTIONS[parts.scheme])
    if unknown:
        raise BadValue(f"{parts.scheme}:// has no option {unknown[0]!r}; it has {', '.join(OPTIONS[parts.scheme])}")
    if parts.scheme == "memory":
        return Location("memory", _named(options.get("cluster", cluster)), (parts.netloc,), "", options)
    if parts.scheme == "sqlite":
        if parts.netloc or not parts.path.strip("/"):
            raise BadValue(f"{url!r}: write the whole path of the file, with three slashes: sqlite:///var/lib/h.db")
        return Location("sqlite", _named(options.get("cluster", cluster)), (), unquote(parts.path), options)
    hosts = tuple(_with_port(host, parts.scheme) for host in parts.netloc.split(",") if host)
    if not hosts:
        raise BadValue(f"{url!r} names no host; write {parts.scheme}://HOST:{PORTS[parts.scheme]}/CLUSTER")
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
