"""The successor's side of durability `standby`: what it holds, compares with the log, and appends when it leads."""

from __future__ import annotations

import pytest

from holdfast.core.state.state import NamedSuccessor, State
from holdfast.master.succession.held_tail import MOST_BYTES, TIMES, HeldTail, NotWilling, SuccessorFirst
from holdfast.messages.records import EpochStarted, LogStarted, NodeModeChanged, SuccessorNamed
from holdfast.messages.shapes import Record
from holdfast.replication.batches import Position, encode_batch, encode_record
from holdfast.replication.standby import Standby

LOG = 1
EPOCH = 4


class Story:
    """A standby that follows a log, and holds a tail of it."""

    def __init__(self) -> None:
        self.lost: list[str] = []
        self.tail = HeldTail("b", self.lost.append)
        self.standby = Standby()
        self.follow(LogStarted(LOG, "c", b"secret"), EpochStarted(EPOCH))

    @property
    def state(self) -> State:
        return self.standby.state

    def follow(self, *records: Record) -> None:
        """The log has these too."""
        position = self.standby.position
        batch, _ = encode_batch(position, [encode_record(record) for record in records], 3)
        before = self.state.index
        self.standby.take(position.batch + 1, batch, 0)
        self.tail.confirm(before, batch, self.state)

    def hold(self, first: int, *records: Record, epoch: int = EPOCH) -> int:
        return self.tail.take(LOG, epoch, first, [encode_record(record) for record in records])

    @property
    def named(self) -> SuccessorNamed:
        return SuccessorNamed("b", self.tail.life)


def changed(number: int) -> NodeModeChanged:
    return NodeModeChanged(f"node-{number}", 1)


def rest_of(story: Story) -> list[bytes]:
    return story.tail.rest(story.state)


def test_it_appends_what_the_log_does_not_have_and_nothing_else() -> None:
    story = Story()
    assert story.hold(3, story.named, changed(1)) == 4
    assert story.hold(5, changed(2), changed(3)) == 6
    story.follow(story.named)
    story.follow(changed(1), changed(2))
    assert rest_of(story) == [encode_record(changed(3))]
    assert story.lost == []


def test_what_the_log_has_is_held_no_longer() -> None:
    story = Story()
    story.hold(3, story.named, changed(1))
    story.follow(story.named, changed(1))
    assert len(story.tail) == 0
    assert rest_of(story) == []


def test_a_batch_may_begin_before_the_tail_and_end_behind_it() -> None:
    story = Story()
    story.hold(4, story.named, changed(2))
    story.follow(changed(1), story.named, changed(2), changed(3))
    assert (len(story.tail), story.lost) == (0, [])


@pytest.mark.parametrize("ends_within", [True, False])
def test_a_log_that_differs_from_the_tail_is_right_and_that_is_reported(ends_within: bool) -> None:
    """Another master has led meanwhile: the tail contradicts its log, and is refused."""
    story = Story()
    story.hold(3, story.named, changed(1), changed(2))
    story.follow(story.named)
    story.follow(*([changed(9)] if ends_within else [changed(1), changed(9), changed(3)]))
    assert len(story.tail) == 0
    assert ["the log differs" in why for why in story.lost] == [True]


def test_a_tail_that_nobody_was_told_of_is_dropped_without_a_word() -> None:
    """The record that names this master never reached the log: nothing was acknowledged on its word."""
    story = Story()
    story.hold(3, story.named, changed(1))
    story.follow(EpochStarted(EPOCH + 1))
    assert (len(story.tail), story.lost) == (0, [])


def test_a_later_epoch_ends_what_the_tail_was_for() -> None:
    story = Story()
    story.hold(3, story.named, changed(1))
    story.follow(story.named, changed(1), EpochStarted(EPOCH + 1))
    assert story.state.successor == NamedSuccessor()
    assert rest_of(story) == []


def test_another_master_gives_way_to_the_one_that_is_named_and_not_for_ever() -> None:
    story = Story()
    story.follow(SuccessorNamed("c", 5))
    for _ in range(TIMES):
        with pytest.raises(SuccessorFirst, match="c holds the tail of the log"):
            rest_of(story)
    assert (rest_of(story), story.lost[0].startswith("c, who held the tail of the log")) == ([], True)


def test_it_counts_anew_for_another_successor() -> None:
    story = Story()
    for life in (5, 6):
        story.follow(SuccessorNamed("c", life))
        for _ in range(TIMES):
            with pytest.raises(SuccessorFirst):
                rest_of(story)


def test_it_counts_anew_for_the_same_successor_of_a_later_primary() -> None:
    """The successor came back the last time. Whoever counted on would serve without it at once, while the primary that
    it deposed may still acknowledge puts on the successor's word."""
    story = Story()
    for epoch in (EPOCH + 1, EPOCH + 2):
        story.follow(EpochStarted(epoch), SuccessorNamed("c", 5))
        for _ in range(TIMES):
            with pytest.raises(SuccessorFirst):
                rest_of(story)
    assert story.lost == []


def test_records_of_an_earlier_line_that_come_late_do_not_take_the_place_of_later_ones() -> None:
    """The primary has given up the connection on which it sent them, and what came over a newer one counts."""
    story = Story()
    story.hold(3, story.named, changed(1))
    story.follow(story.named, changed(1), changed(2), SuccessorNamed("", 0))
    assert story.hold(7, story.named, changed(3)) == 8
    with pytest.raises(NotWilling, match="came late"):
        story.hold(5, changed(2), SuccessorNamed("", 0))
    story.follow(story.named)
    assert rest_of(story) == [encode_record(changed(3))]


def test_a_successor_that_has_been_started_again_has_nothing_and_waits_for_nobody() -> None:
    story = Story()
    story.follow(SuccessorNamed("b", story.tail.life ^ 2))
    assert rest_of(story) == []
    assert len(story.lost) == 1


def test_a_master_that_has_won_holds_nothing_more_for_the_primary_before() -> None:
    story = Story()
    story.tail.check_willing(LOG, EPOCH, story.state)
    story.tail.seal(EPOCH + 1)
    with pytest.raises(NotWilling, match="a later primary"):
        story.tail.check_willing(LOG, EPOCH, story.state)
    story.tail.check_willing(LOG, EPOCH + 1, story.state)


def test_it_holds_nothing_of_another_log() -> None:
    """I19."""
    story = Story()
    with pytest.raises(NotWilling):
        story.tail.check_willing(LOG + 1, EPOCH, story.state)


def test_it_holds_a_bounded_amount() -> None:
    """I17."""
    story = Story()
    piece = bytes(MOST_BYTES // 4 + 1)
    story.tail.take(LOG, EPOCH, 3, [piece] * 4)
    with pytest.raises(NotWilling, match="nothing more was kept"):
        story.tail.check_willing(LOG, EPOCH, story.state)


def test_a_gap_between_log_and_tail_is_reported_and_nothing_is_appended() -> None:
    story = Story()
    story.hold(3, story.named)
    story.follow(story.named)
    story.hold(9, changed(1))
    story.tail._counts = True
    assert rest_of(story) == []
    assert "the log ends with record 3" in story.lost[0]


def test_a_position_is_no_part_of_the_comparison() -> None:
    """Batches are cut by the primary as the log takes them; the tail knows records alone."""
    story = Story()
    story.hold(3, story.named, changed(1), changed(2))
    for record in (story.named, changed(1), changed(2)):
        story.follow(record)
    assert (len(story.tail), story.lost, story.standby.position.index) == (0, [], 5)
    assert story.standby.position != Position()
