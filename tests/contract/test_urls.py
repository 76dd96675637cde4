"""URLs of coordination: what they mean, and that a wrong one says what is wrong."""

from __future__ import annotations

import builtins
from typing import Any

import pytest

from holdfast.coordination.backends import open_coordination
from holdfast.coordination.urls import is_coordination, parse_location
from holdfast.errors import BadValue


def test_a_url_names_hosts_cluster_and_options() -> None:
    place = parse_location("etcd://h1:2379,h2/prod?user=me&password=a%26b&ca=/etc/ca.pem")
    assert place.hosts == ("h1:2379", "h2:2379")
    assert place.cluster == "prod"
    assert place.options == {"user": "me", "password": "a&b", "ca": "/etc/ca.pem"}
    assert parse_location("zookeeper://z/c").hosts == ("z:2181",)
    assert parse_location("zookeeper://z", "given").cluster == "given"
    assert parse_location("zookeeper://z/c", "given").cluster == "c"
    file = parse_location("sqlite:///var/lib/a%20b.db?cluster=c")
    assert (file.path, file.cluster) == ("/var/lib/a b.db", "c")
    assert parse_location("etcd://h/c?service=cache").service == "cache"
    assert is_coordination("etcd://h/c")
    assert not is_coordination("127.0.0.1:7070")


@pytest.mark.parametrize(
    "url",
    [
        "redis://h/c",
        "127.0.0.1:7070",
        "etcd:///c",
        "etcd://h/c?usr=me",
        "etcd://me:secret@h/c",
        "etcd://h/a/b",
        "sqlite://relative.db",
        "sqlite:///",
        'sqlite:///a.db?cluster=a"b',
        "zookeeper://h/" + "c" * 64,
    ],
)
def test_a_url_that_cannot_be_used_is_refused(url: str) -> None:
    with pytest.raises(BadValue):
        parse_location(url)


@pytest.mark.parametrize(("url", "package"), [("etcd://h/c", "grpc"), ("zookeeper://h/c", "kazoo")])
async def test_a_missing_extra_is_named(url: str, package: str, monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    for name in [name for name in sys.modules if name.startswith(("holdfast.coordination.", package))]:
        monkeypatch.delitem(sys.modules, name)
    found = builtins.__import__

    def without(name: str, *more: Any, **named: Any) -> Any:
        if name.split(".", maxsplit=1)[0] == package:
            raise ImportError(f"No module named {name!r}", name=package)
        return found(name, *more, **named)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(BadValue, match=r"pip install 'holdfast\[" + url.split(":", maxsplit=1)[0]):
        await open_coordination(url)


async def test_a_leader_ttl_that_nobody_could_keep_up_is_refused() -> None:
    with pytest.raises(BadValue):
        await open_coordination("memory://", leader_ttl_ms=10)
