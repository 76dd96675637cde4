"""Copies that two threads share: right bytes and checksums, whoever does the work, and nobody writes afterwards."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator

import pytest
import xxhash
from hypothesis import given
from hypothesis import strategies as st

from holdfast.transport import bulk_copy
from holdfast.transport.bulk_copy import (
    CHUNK,
    COPIES_KNOWN,
    SHARED_FROM,
    SHARED_HASHED_CHUNK,
    TRIED_SHARE,
    Hand,
    QuickerWay,
    QuickerWays,
    SharedCopy,
    SharedHash,
    Way,
    copy_bulk,
)
from tests.waiting import wait_until

SIZE = SHARED_FROM + 3 * SHARED_HASHED_CHUNK + 12_345


@pytest.fixture
def hand(monkeypatch: pytest.MonkeyPatch) -> Iterator[Hand]:
    """One that is not asked, so that a test can be it."""
    hand = Hand()
    monkeypatch.setattr(bulk_copy, "_hand", hand)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0})
    return hand


def test_the_second_thread_takes_its_part(monkeypatch: pytest.MonkeyPatch) -> None:
    by: dict[int, set[str]] = {}

    def noted(copy: SharedCopy, start: int) -> None:
        by.setdefault(start, set()).add(threading.current_thread().name)
        if threading.current_thread().name != "holdfast-copy":
            wait_until(lambda: any("holdfast-copy" in names for names in by.values()), 30, "the other one helps")
        copied(copy, start)

    copied = SharedCopy._copy
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1})
    monkeypatch.setattr(SharedCopy, "_copy", noted)
    source, target = os.urandom(SIZE), bytearray(SIZE)
    assert copy_bulk(memoryview(target), memoryview(source), True) == xxhash.xxh3_64_intdigest(source)
    assert target == source
    assert sorted(by) == list(range(0, SIZE, SHARED_HASHED_CHUNK)), "every chunk once"
    assert all(len(names) == 1 for names in by.values())


@pytest.mark.parametrize("checksum", [True, False])
def test_a_copy_that_nobody_helps_with_is_whole(hand: Hand, checksum: bool) -> None:
    source, target = os.urandom(SIZE), bytearray(SIZE)
    expected = xxhash.xxh3_64_intdigest(source) if checksum else 0
    assert copy_bulk(memoryview(target), memoryview(source), checksum) == expected
    assert target == source


def test_a_process_that_gets_no_thread_copies_alone_and_asks_again_later(
    hand: Hand, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_thread(_: threading.Thread) -> None:
        asked.append(None)
        raise RuntimeError("can't start new thread")

    asked: list[None] = []
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1})
    monkeypatch.setattr(threading.Thread, "start", no_thread)
    source, target = os.urandom(SIZE), bytearray(SIZE)
    for _ in range(2):
        assert copy_bulk(memoryview(target), memoryview(source), True) == xxhash.xxh3_64_intdigest(source)
    assert target == source
    assert len(asked) == 2


def test_help_that_comes_when_all_is_done_writes_nothing(hand: Hand) -> None:
    """I11: the range may be somebody else's by then."""
    source, target = os.urandom(SIZE), bytearray(SIZE)
    copy = SharedCopy(memoryview(target), memoryview(source), True)
    copy.run()
    target[:] = bytes(SIZE)
    copy.help()
    assert target == bytes(SIZE)


def test_a_chunk_that_the_other_one_took_and_failed_at_is_copied_all_the_same(hand: Hand) -> None:
    source, target = os.urandom(SIZE), bytearray(SIZE)
    copy = SharedCopy(memoryview(target), memoryview(source), True)
    assert next(copy._starts) == 0
    assert copy.run() == xxhash.xxh3_64_intdigest(source)
    assert target == source


@pytest.mark.parametrize("number", range(5))
def test_the_checksum_is_of_all_bytes_in_order_however_the_two_take_turns(number: int) -> None:
    size = SIZE + number * 1_000_003
    source, target = os.urandom(size), bytearray(size)
    for _ in range(20):
        assert copy_bulk(memoryview(target), memoryview(source), True) == xxhash.xxh3_64_intdigest(source)
    assert target == source


def test_an_interrupted_copy_raises_only_when_the_other_thread_writes_no_more(
    hand: Hand, monkeypatch: pytest.MonkeyPatch
) -> None:
    """I11: the caller gives its grant back as soon as this raises."""
    inside, interrupted = threading.Event(), threading.Event()
    order: list[str] = []

    def slowly(copy: SharedCopy, start: int) -> None:
        if threading.current_thread() is helper:
            inside.set()
            assert interrupted.wait(30)
            copied(copy, start)
            order.append("the other one has written")
        else:
            assert inside.wait(30)
            interrupted.set()
            raise KeyboardInterrupt

    copied = SharedCopy._copy
    monkeypatch.setattr(SharedCopy, "_copy", slowly)
    source, target = os.urandom(SIZE), bytearray(SIZE)
    copy = SharedCopy(memoryview(target), memoryview(source), True)
    helper = threading.Thread(target=copy.help)
    helper.start()
    assert inside.wait(30)
    with pytest.raises(KeyboardInterrupt):
        copy.run()
    order.append("raised")
    helper.join(30)
    assert order == ["the other one has written", "raised"]
    assert bytes(target).count(0) > SIZE - 2 * SHARED_HASHED_CHUNK, "nothing further was taken"


def test_however_often_it_is_interrupted_it_waits_for_the_other_thread(
    hand: Hand, monkeypatch: pytest.MonkeyPatch
) -> None:
    """I11: somebody presses Ctrl-C again while the first one is waited for."""
    copy = SharedCopy(memoryview(bytearray(SIZE)), memoryview(bytes(SIZE)), True)
    copy._helping.acquire()
    pressed: list[None] = []

    def press_again() -> None:
        pressed.append(None)
        if len(pressed) > 3:
            copy._helping.release()
            monkeypatch.undo()
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "sched_yield", press_again)
    with pytest.raises(KeyboardInterrupt):
        copy._wait_for_the_other()
    assert len(pressed) == 4
    assert next(copy._starts, None) is None


def test_a_forked_child_copies_without_the_parents_thread() -> None:
    source, target = os.urandom(SIZE), bytearray(SIZE)
    copy_bulk(memoryview(target), memoryview(source), True)
    child = os.fork()
    if child == 0:
        again = bytearray(SIZE)
        right = copy_bulk(memoryview(again), memoryview(source), True) == xxhash.xxh3_64_intdigest(source)
        os._exit(0 if right and again == source else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_the_second_thread_hashes_what_the_first_is_sending(monkeypatch: pytest.MonkeyPatch) -> None:
    by: list[str] = []

    def noted(shared: SharedHash) -> None:
        by.append(threading.current_thread().name)
        go_on(shared)

    go_on = SharedHash._go_on
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1})
    monkeypatch.setattr(SharedHash, "_go_on", noted)
    data = os.urandom(SIZE)
    digest = xxhash.xxh3_64()
    shared = SharedHash(memoryview(data), digest)
    wait_until(shared.begin, what="the second thread is idle")
    wait_until(lambda: by, what="it begins")
    shared.finish()
    assert by[0] == "holdfast-copy"
    assert digest.intdigest() == xxhash.xxh3_64_intdigest(data)


def test_a_hash_that_nobody_helps_with_is_whole(hand: Hand) -> None:
    data = os.urandom(SIZE)
    digest = xxhash.xxh3_64()
    shared = SharedHash(memoryview(data), digest)
    assert not shared.begin()
    shared.finish()
    assert digest.intdigest() == xxhash.xxh3_64_intdigest(data)
    shared.help()
    assert digest.intdigest() == xxhash.xxh3_64_intdigest(data), "help that comes late changes nothing"


def test_a_hash_that_is_not_wanted_any_more_is_left_by_the_other_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1})
    data = bytearray(64 * CHUNK)
    view = memoryview(data)
    shared = SharedHash(view, xxhash.xxh3_64())
    wait_until(shared.begin, what="the second thread is idle")
    shared.leave()
    assert not list(shared._starts), "nothing is left to be taken"
    shared.help()
    view.release()


MIB = 1 << 20


class Machine:
    """Simulated copies: each takes what its way takes now, and a little more, as other work is in the way."""

    def __init__(self, **seconds: float) -> None:
        self.seconds = {Way[name.upper()]: taken for name, taken in seconds.items()}
        self.quicker = QuickerWay()
        self.went: list[Way] = []

    def copy(self, count: int, size: int = 16 * MIB) -> None:
        for _ in range(count):
            way = self.quicker.next()
            self.quicker.note(way, size, self.seconds[way] * (1 + len(self.went) % 7 / 100))
            self.went.append(way)


def test_two_threads_are_kept_where_they_are_quicker() -> None:
    machine = Machine(two_threads=0.77e-3, one_thread=1.25e-3)
    machine.copy(5_000)
    assert machine.quicker.preferred is Way.TWO_THREADS
    assert machine.went[:COPIES_KNOWN] == [Way.TWO_THREADS] * COPIES_KNOWN, "nothing is tried before"
    assert machine.went.count(Way.ONE_THREAD) <= 1 + 5_000 * TRIED_SHARE
    assert machine.went[-1_000:].count(Way.ONE_THREAD) > 10, "it goes on trying"


def test_a_client_for_which_two_threads_are_slow_soon_copies_with_one() -> None:
    machine = Machine(two_threads=1.67e-3, one_thread=1.25e-3)
    machine.copy(COPIES_KNOWN + 2)
    assert machine.quicker.preferred is Way.ONE_THREAD
    machine.copy(5_000)
    assert machine.quicker.preferred is Way.ONE_THREAD
    assert machine.went.count(Way.TWO_THREADS) <= COPIES_KNOWN + 1 + 5_000 * TRIED_SHARE


def test_the_choice_is_taken_back_when_the_machine_changes() -> None:
    machine = Machine(two_threads=1.67e-3, one_thread=1.25e-3)
    machine.copy(1_000)
    machine.seconds[Way.TWO_THREADS] = 0.77e-3
    machine.copy(200)
    assert machine.quicker.preferred is Way.TWO_THREADS
    machine.seconds[Way.TWO_THREADS] = 1.67e-3
    machine.copy(200)
    assert machine.quicker.preferred is Way.ONE_THREAD


def test_one_quick_trial_is_not_enough() -> None:
    """It may have found the bytes in a cache."""
    machine = Machine(two_threads=0.77e-3, one_thread=0.1e-3)
    machine.copy(COPIES_KNOWN + 1)
    assert machine.went[-1] is Way.ONE_THREAD
    machine.seconds[Way.ONE_THREAD] = 1.25e-3
    machine.copy(2)
    assert machine.went[-2:] == [Way.ONE_THREAD, Way.TWO_THREADS]
    assert machine.quicker.preferred is Way.TWO_THREADS


def test_copies_that_other_work_held_up_do_not_make_a_trial_win() -> None:
    machine = Machine(two_threads=0.77e-3, one_thread=1.25e-3)
    machine.copy(1)
    machine.seconds[Way.TWO_THREADS] = 5.0e-3
    machine.copy(COPIES_KNOWN + 1)
    assert machine.went.count(Way.ONE_THREAD) == 1, "tried, and not again at once"
    assert machine.quicker.preferred is Way.TWO_THREADS


def test_a_way_that_is_about_as_quick_is_not_gone_over_to() -> None:
    machine = Machine(two_threads=1.0e-3, one_thread=0.95e-3)
    machine.copy(1_000)
    assert machine.quicker.preferred is Way.TWO_THREADS


@given(
    st.lists(
        st.tuples(st.sampled_from([2 * MIB, 3 * MIB, 4 * MIB - 1]), st.floats(1e-4, 1e-1), st.floats(1e-4, 1e-1)),
        min_size=1,
        max_size=400,
    )
)
def test_trials_that_lose_are_a_small_share_of_all_bytes(copies: list[tuple[int, float, float]]) -> None:
    """Whatever the copies take: a trial is one copy, and a second one if the first won."""
    quicker = QuickerWay()
    tried = copied = 0
    for size, two, one in copies:
        way = quicker.next()
        tried += size if way is not quicker.preferred else 0
        copied += size
        quicker.note(way, size, two if way is Way.TWO_THREADS else one)
    assert tried <= TRIED_SHARE * copied + 2 * 4 * MIB


def test_each_size_of_copies_has_its_own_choice() -> None:
    ways = QuickerWays()
    assert ways.of(16 * MIB) is ways.of(17 * MIB)
    assert ways.of(16 * MIB) is not ways.of(2 * MIB)


def given_hand(monkeypatch: pytest.MonkeyPatch, idle: bool) -> None:
    hand = Hand()
    monkeypatch.setattr(bulk_copy, "_hand", hand)
    monkeypatch.setattr(hand, "offer", lambda _: idle)


@pytest.mark.parametrize("way", list(Way))
def test_bytes_and_checksum_are_right_each_way(way: Way, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1})
    monkeypatch.setattr(QuickerWay, "next", lambda _: way)
    shared: list[SharedCopy] = []
    run = SharedCopy.run
    monkeypatch.setattr(SharedCopy, "run", lambda copy: shared.append(copy) or run(copy))
    source, target = os.urandom(SIZE), bytearray(SIZE)
    ways = QuickerWays()
    assert copy_bulk(memoryview(target), memoryview(source), True, ways) == xxhash.xxh3_64_intdigest(source)
    assert target == source
    assert len(shared) == (1 if way is Way.TWO_THREADS else 0)


def test_large_copies_with_a_checksum_teach_which_way_is_quicker(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two threads, one copy after the other, take twice as long by this clock."""
    given_hand(monkeypatch, idle=True)
    now = 0.0

    def pass_time(seconds: float) -> None:
        nonlocal now
        now += seconds

    run, alone = SharedCopy.run, bulk_copy._copy_alone

    def run_slowly(copy: SharedCopy) -> int:
        pass_time(2.0)
        return run(copy)

    def copy_alone(target: memoryview, source: memoryview, checksum: bool) -> int:
        pass_time(1.0)
        return alone(target, source, checksum)

    monkeypatch.setattr(bulk_copy, "now_seconds", lambda: now)
    monkeypatch.setattr(SharedCopy, "run", run_slowly)
    monkeypatch.setattr(bulk_copy, "_copy_alone", copy_alone)
    source, target = os.urandom(SIZE), bytearray(SIZE)
    ways = QuickerWays()
    for _ in range(COPIES_KNOWN + 2):
        assert copy_bulk(memoryview(target), memoryview(source), True, ways) == xxhash.xxh3_64_intdigest(source)
    assert ways.of(SIZE).preferred is Way.ONE_THREAD


def test_a_copy_that_the_second_thread_was_not_asked_for_teaches_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    given_hand(monkeypatch, idle=False)
    noted: list[Way] = []
    monkeypatch.setattr(QuickerWay, "note", lambda _, way, size, seconds: noted.append(way))
    source, target = os.urandom(SIZE), bytearray(SIZE)
    ways = QuickerWays()
    for _ in range(COPIES_KNOWN + 2):
        copy_bulk(memoryview(target), memoryview(source), True, ways)
    assert noted == []
    assert ways.of(SIZE).next() is Way.TWO_THREADS


@pytest.mark.parametrize(("size", "checksum"), [(SHARED_FROM - 1, True), (SIZE, False)])
def test_short_copies_and_those_without_a_checksum_are_not_measured(
    size: int, checksum: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bulk_copy, "now_seconds", lambda: pytest.fail("the clock was read"))
    source, target = os.urandom(size), bytearray(size)
    found = copy_bulk(memoryview(target), memoryview(source), checksum, QuickerWays())
    assert found == (xxhash.xxh3_64_intdigest(source) if checksum else 0)
    assert target == source
