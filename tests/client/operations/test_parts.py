"""A large batch is read in parts: the next one is asked for while one is copied, and nothing of that shows."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from holdfast.client.operations.batch_gets import MOST_PORTION
from holdfast.errors import ChecksumMismatch, DeadlineExceeded, HoldfastError, NotLeader
from holdfast.messages.requests import Locate
from holdfast.messages.shapes import Message
from holdfast.wire.codec import failed
from tests.client.fake_master import Act, FakeMaster
from tests.client.inside import connection_of

Connect = Callable[..., Any]
COUNT = 3 * MOST_PORTION + 7


@pytest.fixture
def values(master: FakeMaster, connect: Connect) -> dict[str, bytes]:
    values = {f"key {number:05}": number.to_bytes(4) * 16 for number in range(COUNT)}
    assert connect(master.address).put_many(values) == COUNT
    return values


def nth(number: int, verdict: Act | Message) -> Callable[[Message], Act | Message]:
    """This verdict about one Locate, by the order in which they come."""
    seen: list[Message] = []

    def judge(request: Message) -> Act | Message:
        if isinstance(request, Locate):
            seen.append(request)
            if len(seen) == number:
                return verdict
        return Act.USUAL

    return judge


def test_parts_come_together_in_the_order_that_was_asked_for(
    master: FakeMaster, connect: Connect, values: dict[str, bytes]
) -> None:
    reader = connect(master.address)
    reader.get_many(list(values)[5:300:7])
    asked = [*reversed(values), "absent", *list(values)[:20]]
    found = reader.get_many(asked)
    assert found == values
    assert list(found) == list(dict.fromkeys(reversed(values)))
    assert max(len(request.keys) for request in master.asked(Locate)) <= MOST_PORTION


@pytest.mark.parametrize("count", [MOST_PORTION - 1, MOST_PORTION, MOST_PORTION + 1, 2 * MOST_PORTION + 1])
def test_batches_of_any_length_are_whole(
    master: FakeMaster, connect: Connect, values: dict[str, bytes], count: int
) -> None:
    keys = list(values)[:count]
    assert connect(master.address).get_many(keys) == {key: values[key] for key in keys}
    parts = [len(request.keys) for request in master.asked(Locate)]
    assert sum(parts) == count
    assert (len(parts) == 1) == (count <= MOST_PORTION)


@pytest.mark.parametrize("number", [1, 2, 3, 4])
@pytest.mark.parametrize(
    "verdict", [Act.DROP, Act.DO_AND_DROP, failed(NotLeader("another one leads"))], ids=["lost", "unanswered", "moved"]
)
def test_a_part_whose_answer_is_lost_is_asked_for_again(
    master: FakeMaster, connect: Connect, values: dict[str, bytes], number: int, verdict: Act | Message
) -> None:
    reader = connect(master.address, timeout=20)
    master.judge = nth(number, verdict)
    assert reader.get_many(list(values)) == values


def test_a_key_that_fails_costs_its_key_and_leaves_no_question_behind(
    master: FakeMaster, connect: Connect, values: dict[str, bytes]
) -> None:
    reader = connect(master.address)
    id_, segment, offset, size, checksum = master.objects["key 00003"]
    master.objects["key 00003"] = (id_, segment, offset, size, checksum ^ 1)
    errors: dict[str, HoldfastError] = {}
    others = {key: value for key, value in values.items() if key != "key 00003"}
    assert reader.get_many(list(values), errors=errors) == others
    assert [(key, type(error)) for key, error in errors.items()] == [("key 00003", ChecksumMismatch)]
    assert not waiting(reader)
    master.objects["key 00003"] = (id_, segment, offset, size, checksum)
    assert reader.get_many(list(values)) == values
    assert not waiting(reader)


def test_an_answer_that_never_comes_costs_the_deadline(
    master: FakeMaster, connect: Connect, values: dict[str, bytes]
) -> None:
    reader = connect(master.address, timeout=0.5)
    reader.get("key 00000")
    master.judge = nth(2, Act.SILENCE)
    with pytest.raises(DeadlineExceeded):
        reader.get_many(list(values))
    assert not waiting(reader)
    assert reader.get_many(list(values)) == values


def waiting(cache: Any) -> object:
    """Who waits for replies over this client's connection."""
    return connection_of(cache)._waiting
