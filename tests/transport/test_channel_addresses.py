"""Lists of masters as people write them."""

from __future__ import annotations

import pytest

from holdfast.errors import BadValue
from holdfast.transport.addresses import master_addresses


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
