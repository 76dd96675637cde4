"""URLs of coordination: what they mean, and that a wrong one says what is wrong."""

from __future__ import annotations

import builtins
from pathlib import Path
from typing import Any

import pytest

from holdfast.cli.main import main
from holdfast.coordination.backends import open_coordination
from holdfast.coordination.urls import is_coordination, parse_location, redacted
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


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("etcd://h/c?user=me&password=planted&tls=on", "etcd://h/c?user=me&password=***&tls=on"),
        ("etcd://me:planted@h/c", "etcd://***@h/c"),
        (
            "two: etcd://h/c?password=planted zookeeper://z/c?PASSWORD=planted",
            "two: etcd://h/c?password=*** zookeeper://z/c?PASSWORD=***",
        ),
        ("zookeeper://h/c?password_file=/run/p", "zookeeper://h/c?password_file=/run/p"),
        ("127.0.0.1:7070", "127.0.0.1:7070"),
    ],
)
def test_a_url_is_shown_without_its_password(url: str, shown: str) -> None:
    assert redacted(url) == shown


@pytest.mark.parametrize(
    "url",
    [
        "etcd://me:planted@h/c",
        "redis://h/c?password=planted",
        "etcd:///c?password=planted",
        "etcd://h/c?password=planted&password_file=/x",
        "etcd://h/c?password=planted&colour=red",
        "zookeeper://h/c?user=a&password=planted&auth=kerberos",
        "sqlite://h/?password=planted",
    ],
)
def test_no_error_about_a_url_quotes_its_password(url: str) -> None:
    with pytest.raises(BadValue) as told:
        parse_location(url)
    assert "planted" not in str(told.value)


def test_a_location_does_not_show_its_password() -> None:
    assert "planted" not in repr(parse_location("etcd://h/c?user=me&password=planted"))


def test_the_password_comes_from_the_url_a_file_or_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "password"
    path.touch(mode=0o600)
    path.write_text("in the file\n")
    monkeypatch.setenv("HOLDFAST_COORDINATION_PASSWORD", "in the environment")
    assert parse_location("etcd://h/c").login() is None
    assert parse_location("etcd://h/c?user=me&password=given").login() == ("me", "given")
    assert parse_location(f"etcd://h/c?user=me&password_file={path}").login() == ("me", "in the file")
    assert parse_location("zookeeper://h/c?user=me").login() == ("me", "in the environment")
    path.chmod(0o644)
    with pytest.raises(BadValue, match="chmod 600"):
        parse_location(f"etcd://h/c?user=me&password_file={path}").login()


@pytest.mark.parametrize("verb", ["status", "doctor", "masters", "ls"])
def test_no_verb_shows_the_password_of_its_url(verb: str, capfd: pytest.CaptureFixture[str]) -> None:
    url = "zookeeper://127.0.0.1:1/c?user=me&password=planted"
    code = main([verb, "--address", url, "--timeout", "1s"])
    shown = "".join(capfd.readouterr())
    assert code != 0
    assert "planted" not in shown
    assert "password_file=" in shown, "it says how to give a password without showing it to everybody"
