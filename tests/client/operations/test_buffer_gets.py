"""get_many_into, gathered puts and their outcomes: a key that fails costs its key, and a batch costs one request."""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any

import msgspec
import pytest

import holdfast
from holdfast import errors
from holdfast.client.operations.batch_gets import MOST_PORTION
from holdfast.client.operations.buffer_gets import BLOCK_BYTES
from holdfast.messages.requests import CommitPuts, GrantRanges, Locate, RenewLeases
from holdfast.messages.shapes import Message
from holdfast.wire.codec import failed
from tests.client.fake_master import Act, FakeMaster

Connect = Callable[..., Any]
SMALL, LARGE = 3_000, BLOCK_BYTES + 4097


@pytest.fixture(params=["mapped", "over TCP"])
def served(request: pytest.FixtureRequest) -> FakeMaster:
    """A master whose node is on this machine, or is not."""
    found: FakeMaster = request.getfixturevalue("master" if request.param == "mapped" else "remote_master")
    return found


def value(number: int, size: int = SMALL) -> bytes:
    return (number.to_bytes(4, "big") * -(-size // 4))[:size]


def stored(master: FakeMaster, connect: Connect, count: int = 5) -> dict[str, bytes]:
    values = {f"key {number}": value(number) for number in range(count)}
    assert connect(master.address).put_many(values) == count
    return values


def test_each_key_has_its_answer(served: FakeMaster, connect: Connect) -> None:
    values = stored(served, connect)
    reader = connect(served.address)
    keys = ["key 3", "absent", "key 0", "key 3", "key 4"]
    rooms = [bytearray(SMALL), bytearray(9), bytearray(SMALL + 10), bytearray(SMALL), bytearray(10)]
    answers = reader.get_many_into(keys, rooms)
    assert answers[:4] == [SMALL, 0, SMALL, SMALL]
    assert isinstance(answers[4], errors.BufferTooSmall)
    assert rooms[0] == rooms[3] == values["key 3"]
    assert rooms[2] == values["key 0"] + bytes(10)
    assert rooms[4] == bytes(10)
    assert len(served.asked(Locate)) == 1
    assert reader.get_many_into([], []) == []


@pytest.mark.parametrize("verify", [None, True, False])
def test_parts_and_rows_of_buffers(served: FakeMaster, connect: Connect, verify: bool | None) -> None:
    data = value(7, LARGE)
    writer = connect(served.address)
    assert writer.put("large", [data[:70_000], bytearray(data[70_000:70_001]), memoryview(data)[70_001:]])
    assert writer.get("large") == data
    reader = connect(served.address)
    row = [bytearray(100_000), bytearray(1), bytearray(LARGE)]
    parts = [bytearray(10), bytearray(70_000), bytearray(1)]
    wanted = [holdfast.Part(LARGE - 10, parts[0]), holdfast.Part(0, parts[1]), holdfast.Part(5, parts[2])]
    beyond = [holdfast.Part(LARGE - 1, bytearray(2))]
    answers = reader.get_many_into(["large"] * 3, [row, wanted, beyond], verify=verify)
    assert answers[:2] == [LARGE, 70_011]
    assert isinstance(answers[2], errors.BadValue)
    assert b"".join(row)[:LARGE] == data
    assert parts == [data[-10:], data[:70_000], data[5:6]]
    again = bytearray(20)
    assert reader.get_into("large", holdfast.Part(3, again)) == 20
    assert again == data[3:23]
    assert reader.get_into("large", row) == LARGE
    with pytest.raises(errors.BufferTooSmall):
        reader.get_into("large", [bytearray(10), bytearray(20)])


def test_wrong_bytes_are_not_given(served: FakeMaster, connect: Connect) -> None:
    values = stored(served, connect)
    id_, segment, offset, size, checksum = served.objects["key 2"]
    served.objects["key 2"] = (id_, segment, offset, size, checksum ^ 1)
    reader = connect(served.address, timeout=5)
    rooms = [bytearray(SMALL) for _ in values]
    answers = reader.get_many_into(list(values), rooms)
    assert isinstance(answers[2], errors.ChecksumMismatch)
    assert [answer for answer in answers if answer == SMALL] == [SMALL] * 4
    assert [bytes(room) for room in rooms[:2]] == list(values.values())[:2]
    assert reader.get_many_into(["key 2"], [bytearray(SMALL)], verify=False) == [SMALL]
    part = bytearray(5)
    assert reader.get_many_into(["key 2"], [[holdfast.Part(1, part)]]) == [5]
    assert part == values["key 2"][1:6]


def test_a_client_that_does_not_verify_is_told_to(served: FakeMaster, connect: Connect) -> None:
    stored(served, connect)
    id_, segment, offset, size, checksum = served.objects["key 2"]
    served.objects["key 2"] = (id_, segment, offset, size, checksum ^ 1)
    reader = connect(served.address, verify=False, timeout=5)
    assert reader.get_many_into(["key 2"], [bytearray(SMALL)]) == [SMALL]
    [answer] = reader.get_many_into(["key 2"], [bytearray(SMALL)], verify=True)
    assert isinstance(answer, errors.ChecksumMismatch)


@pytest.mark.parametrize("sound", [True, False])
def test_parts_from_memory_under_a_restored_catalogue_are_compared_as_a_whole(
    served: FakeMaster, connect: Connect, sound: bool
) -> None:
    """Its bytes may differ from what the catalogue says, so that a lease alone proves nothing: whatever was asked."""
    values = stored(served, connect)
    id_, segment, offset, size, checksum = served.objects["key 2"]
    served.objects["key 2"] = (id_, segment, offset, size, checksum if sound else checksum ^ 1)
    places = [msgspec.structs.replace(place, unverified=True) for place in served.segments()]
    served.segments = lambda: places  # type: ignore[method-assign]
    reader = connect(served.address, verify=False, timeout=5)
    part, other = bytearray(5), bytearray(7)
    answers = reader.get_many_into(["key 2", "key 1"], [[holdfast.Part(1, part)], [holdfast.Part(2, other)]])
    assert answers[1] == 7
    assert other == values["key 1"][2:9]
    if sound:
        assert answers[0] == 5
        assert part == values["key 2"][1:6]
    else:
        assert isinstance(answers[0], errors.ChecksumMismatch)
        with pytest.raises(errors.ChecksumMismatch):
            reader.get_into("key 2", [holdfast.Part(1, part)])


def test_a_lease_that_ran_out_is_asked_about(served: FakeMaster, connect: Connect) -> None:
    values = stored(served, connect)
    reader = connect(served.address)
    served.lease_ttl_ms = 0
    rooms = [bytearray(SMALL) for _ in values]
    assert reader.get_many_into(list(values), rooms) == [SMALL] * 5
    assert [*map(bytes, rooms)] == list(values.values())
    assert len(served.asked(RenewLeases)) == 1


def test_what_was_replaced_while_it_was_read_is_read_again(served: FakeMaster, connect: Connect) -> None:
    values = stored(served, connect)
    served.objects["other"] = served.objects["key 4"]
    reader = connect(served.address)
    served.lease_ttl_ms = 0

    def judge(request: Message) -> Act:
        if isinstance(request, RenewLeases):
            served.lease_ttl_ms = 10_000
            id_, segment, offset, size, checksum = served.objects["other"]
            served.objects["key 1"] = (id_ + 100, segment, offset, size, checksum)
        return Act.USUAL

    served.judge = judge
    rooms = [bytearray(SMALL) for _ in values]
    assert reader.get_many_into(list(values), rooms) == [SMALL] * 5
    assert rooms[1] == values["key 4"]


def test_the_next_replica_is_read(remote_master: FakeMaster, connect: Connect) -> None:
    values = stored(remote_master, connect)
    for key in list(values)[:3]:
        id_, _, offset, size, checksum = remote_master.objects[key]
        remote_master.others[key] = [(remote_master.objects[key][1], offset)]
        remote_master.objects[key] = (id_, 2, 0, size, checksum)
    remote_master.dead.add(2)
    remote_master.topology += 1
    reader = connect(remote_master.address)
    rooms = [bytearray(SMALL) for _ in values]
    assert reader.get_many_into(list(values), rooms) == [SMALL] * 5
    assert [*map(bytes, rooms)] == list(values.values())


def test_a_dead_node_costs_its_keys(remote_master: FakeMaster, connect: Connect) -> None:
    values = stored(remote_master, connect)
    id_, _, _, size, checksum = remote_master.objects["key 0"]
    remote_master.objects["key 0"] = (id_, 2, 0, size, checksum)
    remote_master.dead.add(2)
    remote_master.topology += 1
    reader = connect(remote_master.address, timeout=1)
    rooms = [bytearray(SMALL) for _ in values]
    answers = reader.get_many_into(list(values), rooms)
    assert isinstance(answers[0], errors.NodeLost)
    assert answers[1:] == [SMALL] * 4
    assert [*map(bytes, rooms[1:])] == list(values.values())[1:]


def test_a_history_that_changes_in_between_counts_as_a_lease_that_ended(master: FakeMaster, connect: Connect) -> None:
    values = stored(master, connect)
    reader = connect(master.address)
    seen: list[Message] = []

    def judge(request: Message) -> Act:
        if isinstance(request, Locate):
            seen.append(request)
            if len(seen) == 1:
                master.log_id += 1
                return Act.DO_AND_DROP
        return Act.USUAL

    master.judge = judge
    rooms = [bytearray(SMALL) for _ in values]
    assert reader.get_many_into(list(values), rooms) == [SMALL] * 5
    assert [*map(bytes, rooms)] == list(values.values())


def test_a_large_batch_is_asked_for_in_portions(served: FakeMaster, connect: Connect) -> None:
    count = MOST_PORTION + 3
    values = {f"key {number}": value(number, 64) for number in range(count)}
    connect(served.address).put_many(values)
    rooms = [bytearray(64) for _ in values]
    assert connect(served.address).get_many_into(list(values), rooms) == [64] * count
    assert [*map(bytes, rooms)] == list(values.values())


def test_no_master_is_everybodys_trouble(master: FakeMaster, connect: Connect) -> None:
    reader = connect(master.address, timeout=0.3)
    master.judge = lambda request: Act.DROP
    with pytest.raises(errors.HoldfastError):
        reader.get_many_into(["key"], [bytearray(1)])
    with pytest.raises(errors.HoldfastError):
        reader.put_many({"key": b"x"}, outcomes=True)


def test_outcomes_are_by_key(served: FakeMaster, connect: Connect) -> None:
    cache = connect(served.address)
    assert cache.put("there", b"before")
    items = [("a", b"1"), ("there", b"2"), ("b", [b"3", b"4"]), ("a", b"5"), ("large", [bytes(90_000), b"end"])]
    assert cache.put_many(items, outcomes=True) == [True, False, True, False, True]
    assert cache.get_many(["a", "there", "b"]) == {"a": b"1", "there": b"before", "b": b"34"}
    assert cache.get("large") == bytes(90_000) + b"end"
    assert cache.put_many(dict(items), outcomes=True) == [False] * 4
    assert cache.put_many([("a", b"9"), ("c", b"7"), ("c", b"8")]) == 1
    assert cache.put_many([], outcomes=True) == []
    assert cache.put_many({}) == 0


def test_outcomes_of_a_batch_in_several_grants(served: FakeMaster, connect: Connect) -> None:
    cache = connect(served.address)
    cache.put("key 5", b"before")
    values = {f"key {number}": value(number, 200_000) for number in range(12)}
    assert cache.put_many(values, outcomes=True) == [number != 5 for number in range(12)]
    assert len(served.asked(GrantRanges)) > 1
    assert cache.get_many(values) == {**values, "key 5": b"before"}


def test_an_error_costs_the_keys_of_its_grant(served: FakeMaster, connect: Connect) -> None:
    cache = connect(served.address)
    values = {f"key {number}": value(number, 200_000) for number in range(12)}
    commits: list[Message] = []

    def judge(request: Message) -> Act | Message:
        if isinstance(request, CommitPuts):
            commits.append(request)
            if len(commits) == 2:
                return failed(errors.BadRequest("not this one"))
        return Act.USUAL

    served.judge = judge
    answers = cache.put_many(values, outcomes=True)
    wrong = [number for number, answer in enumerate(answers) if isinstance(answer, errors.BadRequest)]
    assert 0 < len(wrong) < 12
    assert [answer for answer in answers if answer is True] == [True] * (12 - len(wrong))
    assert set(cache.get_many(values)) == {key for number, key in enumerate(values) if number not in wrong}


def test_an_object_too_large_for_any_segment_fails_alone(served: FakeMaster, connect: Connect) -> None:
    cache = connect(served.address)

    def judge(request: Message) -> Act | Message:
        if isinstance(request, GrantRanges) and "huge" in request.keys:
            return failed(errors.TooLarge("no segment is as large"))
        return Act.USUAL

    served.judge = judge
    items = [("a", value(1, 200_000)), ("huge", value(2, 200_000)), ("b", value(3, 200_000))]
    first, huge, last = cache.put_many(items, outcomes=True)
    assert (first, last) == (True, True)
    assert isinstance(huge, errors.TooLarge)


def test_no_room_costs_the_keys_that_do_not_fit(served: FakeMaster, connect: Connect) -> None:
    """To find out which they are takes a few questions, not one for each key."""
    cache = connect(served.address)

    def judge(request: Message) -> Act | Message:
        if isinstance(request, GrantRanges) and max(sizes_of(request), default=0) > 100_000:
            return failed(errors.NoRoom("nearly full"))
        return Act.USUAL

    served.judge = judge
    items = {f"key {number}": value(number, 1_000_000 if number % 20 == 3 else 40_000) for number in range(60)}
    answers = hurry(cache, 3).put_many(items, outcomes=True)
    refused = [number for number, answer in enumerate(answers) if isinstance(answer, errors.NoRoom)]
    assert refused == [3, 23, 43]
    assert answers.count(True) == 57
    assert set(cache.get_many(items)) == {key for number, key in enumerate(items) if number not in refused}
    # Four pieces, and of those that were refused half, a quarter and so on.
    assert len({request.grant for request in served.asked(GrantRanges)}) <= 4 + 4 * len(items).bit_length()


def test_small_objects_find_room_apart_that_they_do_not_find_together(served: FakeMaster, connect: Connect) -> None:
    cache = connect(served.address)

    def judge(request: Message) -> Act | Message:
        full = isinstance(request, GrantRanges) and not request.keys and request.least_bytes > 10_000
        return failed(errors.NoRoom("nearly full")) if full else Act.USUAL

    served.judge = judge
    items = {f"key {number}": value(number, 2_000) for number in range(20)}
    assert hurry(cache, 3).put_many(items, outcomes=True) == [True] * 20
    assert cache.get_many(items) == items


def test_a_piece_that_waits_for_room_leaves_time_for_the_others(served: FakeMaster, connect: Connect) -> None:
    """And has not failed by that: it finds room that comes while it waits."""
    cache = connect(served.address)
    served.grants_ahead = False
    full = {"first": True, "second": True}

    def judge(request: Message) -> Act | Message:
        if not isinstance(request, GrantRanges):
            return Act.USUAL
        if "key 11" in request.keys:
            full["second"] = False
        return failed(errors.NoRoom("full")) if any(full.get(key) for key in request.keys) else Act.USUAL

    served.judge = judge
    items = {"first": value(1, 2_000_000), "second": value(2, 1_900_000)}
    items |= {f"key {number}": value(number, 40_000) for number in range(12)}
    first, *others = hurry(cache, 4).put_many(items, outcomes=True)
    assert isinstance(first, errors.NoRoom)
    assert others == [True] * 13


def sizes_of(request: GrantRanges) -> list[int]:
    """Of the objects that memory is asked for by key."""
    return [size for (size,) in struct.iter_unpack("<Q", request.sizes)] if request.keys else []


def hurry(cache: Any, seconds: float) -> Any:
    getattr(cache, "cache", cache).timeout = seconds
    return cache


def test_registering_checks_the_buffer(master: FakeMaster, connect: Connect) -> None:
    # Not awaited in either shell: nothing is done that could wait.
    cache = connect(master.address)
    face = getattr(cache, "cache", cache)
    memory = bytearray(10)
    assert face.register(memory) is None
    assert face.unregister(memory) is None
    with pytest.raises(TypeError, match="int"):
        face.register(5)
