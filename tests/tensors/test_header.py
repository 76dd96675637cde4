"""The header in front of a tensor's bytes: what is stored is known again, nothing else is taken for a tensor."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.errors import BadValue
from holdfast.tensors.header import ALIGN, SIZES, Header, header_of

shapes = st.lists(st.integers(0, 5), max_size=6).map(tuple)
headers = st.builds(Header, st.sampled_from(sorted(SIZES)), shapes)


@given(headers)
def test_a_header_is_read_as_it_was_written_and_keeps_the_elements_aligned(header: Header) -> None:
    packed = header.packed()
    stored = memoryview(packed + bytes(header.nbytes))
    assert header_of("key", stored) == (header, len(packed))
    assert len(packed) % ALIGN == 0


@given(headers, st.data())
def test_the_front_of_an_object_is_enough_where_its_size_is_known(header: Header, data: st.DataObject) -> None:
    packed = header.packed()
    more = data.draw(st.integers(0, header.nbytes))
    assert header_of("key", memoryview(packed + bytes(more)), len(packed) + header.nbytes) == (header, len(packed))


@given(st.binary(max_size=200))
def test_other_bytes_are_no_tensor(content: bytes) -> None:
    with pytest.raises(BadValue, match="holds no tensor"):
        header_of("key", memoryview(content))


@given(headers, st.data())
def test_a_header_with_a_changed_byte_is_refused_or_describes_the_same_number_of_bytes(
    header: Header, data: st.DataObject
) -> None:
    packed = bytearray(header.packed())
    packed[data.draw(st.integers(0, len(packed) - 1))] ^= data.draw(st.integers(1, 255))
    content = memoryview(bytes(packed) + bytes(header.nbytes))
    try:
        found, start = header_of("key", content)
    except BadValue:
        return
    assert start + found.nbytes == content.nbytes


def test_a_tensor_of_another_size_than_its_header_says_is_refused() -> None:
    packed = Header("F32", (2, 3)).packed()
    with pytest.raises(BadValue, match="holds no tensor"):
        header_of("key", memoryview(packed + bytes(20)))
