"""Addresses as people write them."""

from __future__ import annotations

import pytest

from holdfast.errors import BadValue
from holdfast.transport.addresses import host_and_port, joined, master_addresses


@pytest.mark.parametrize(
    ("text", "host", "port"),
    [
        ("127.0.0.1:7070", "127.0.0.1", 7070),
        (" host : 1 ".replace(" : ", ":"), "host", 1),
        ("host", "host", 7070),
        ("[::1]:80", "::1", 80),
        ("[::1]", "::1", 7070),
        ("fe80::1", "fe80::1", 7070),
    ],
)
def test_an_address_is_host_and_port(text: str, host: str, port: int) -> None:
    assert host_and_port(text) == (host, port)
    assert host_and_port(joined(host, port)) == (host, port)


@pytest.mark.parametrize("text", ["", ":7070", "host:x", "host:70000", "[::1", "[::1]x", "host:-1", "host:²"])
def test_what_is_no_address_is_refused(text: str) -> None:
    with pytest.raises(BadValue, match="no address"):
        host_and_port(text)


def test_a_port_can_be_demanded() -> None:
    with pytest.raises(BadValue, match="no port"):
        host_and_port("host", default_port=None)


def test_a_list_is_several_masters() -> None:
    assert master_addresses("a:1, b,[::1]:3,") == ["a:1", "b:7070", "[::1]:3"]


@pytest.mark.parametrize("text", ["etcd://h:2379/c", "zookeeper://h:2181/c", "sqlite:///f.db?cluster=c"])
def test_where_masters_are_looked_up_is_the_address_of_none(text: str) -> None:
    with pytest.raises(BadValue, match="looked up"):
        master_addresses(text)


@pytest.mark.parametrize("text", ["", " , ", "http://h"])
def test_what_names_no_master_is_refused(text: str) -> None:
    with pytest.raises(BadValue):
        master_addresses(text)


def test_an_address_is_text() -> None:
    with pytest.raises(TypeError, match="int"):
        master_addresses(7070)  # type: ignore[arg-type]
