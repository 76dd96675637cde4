"""Addresses as people write them."""

from __future__ import annotations

import pytest

from holdfast.addresses import join_address, split_address
from holdfast.errors import BadValue

WHOLE = [
    ("127.0.0.1:7070", ("127.0.0.1", 7070)),
    ("[::1]:0", ("::1", 0)),
    ("[fe80::1]:80", ("fe80::1", 80)),
    ("host.example:65535", ("host.example", 65535)),
]
NEVER = [
    "", ":7070", "host:x", "host:65536", "[::1", "[::1]x", "[]:1", "a b:1", "a/b:1", "a,b:1", " h:1", "h:1 ", "h:-1",
    "h:٣", "host:²", "[h]]:1",
]  # fmt: skip


@pytest.mark.parametrize(("text", "parts"), WHOLE)
@pytest.mark.parametrize("default_port", [None, 7070])
def test_an_address_is_a_host_and_a_port(text: str, parts: tuple[str, int], default_port: int | None) -> None:
    assert split_address(text, default_port) == parts
    assert join_address(*parts) == text


@pytest.mark.parametrize(
    ("text", "host"), [("host", "host"), ("host:", "host"), ("7070", "7070"), ("[::1]", "::1"), ("fe80::1", "fe80::1")]
)
def test_a_port_may_be_missing_where_there_is_a_default(text: str, host: str) -> None:
    assert split_address(text, 99) == (host, 99)
    with pytest.raises(BadValue, match="is not an address"):
        split_address(text)


def test_an_ipv6_host_before_a_port_stands_in_brackets() -> None:
    with pytest.raises(BadValue, match="brackets"):
        split_address("::1:7070")


@pytest.mark.parametrize("text", NEVER)
@pytest.mark.parametrize("default_port", [None, 7070])
def test_what_is_no_address_is_refused(text: str, default_port: int | None) -> None:
    with pytest.raises(BadValue, match="is not an address"):
        split_address(text, default_port)
