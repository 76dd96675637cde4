"""What the next report says."""

from __future__ import annotations

from holdfast.ids import GrantId
from holdfast.node.session.report import AHEAD, MOST_SAID_AT_ONCE, Report

GRANT = GrantId(1, 1)


def test_a_dead_writer_and_a_clean_grant_are_said_until_a_report_that_said_them_is_answered() -> None:
    report = Report(lambda: None)
    first = report.writer_came()
    second = report.writer_came()
    report.writer_went(first)
    report.grants_cleaned([GRANT])
    lost = report.news(9, 5)
    assert (lost.session, lost.boot, lost.gone_writers, lost.cleaned) == (9, 5, [first], [GRANT])
    report.writer_went(second)
    answered = report.news(9, 5)
    assert answered.gone_writers == [first, second]
    report.acknowledged(answered)
    assert report.news(9, 5).gone_writers == []
    assert report.news(9, 5).cleaned == []


def test_what_came_while_a_report_was_under_way_is_said_in_the_next() -> None:
    report = Report(lambda: None)
    first, second = report.writer_came(), report.writer_came()
    report.writer_went(first)
    under_way = report.news(9, 5)
    report.writer_went(second)
    report.acknowledged(under_way)
    assert report.news(9, 5).gone_writers == [second]


def test_a_writer_goes_once() -> None:
    report = Report(lambda: None)
    number = report.writer_came()
    report.writer_went(number)
    report.acknowledged(report.news(9, 5))
    report.writer_went(number)
    assert report.news(9, 5).gone_writers == []


def test_numbers_are_never_given_out_twice_not_even_for_new_memory() -> None:
    """I14."""
    report = Report(lambda: None)
    seen = [report.writer_came() for _ in range(3)]
    report.writer_went(seen[0])
    report.memory_voided()
    assert report.news(9, 6).gone_writers == []
    assert report.writers_for_registration() == list(range(4, 4 + AHEAD))
    report.writer_went(seen[1])
    assert report.news(9, 6).gone_writers == []
    assert report.writer_came() not in seen


def test_a_registration_lists_live_writers_and_those_to_come_and_no_dead_one() -> None:
    """I11: whoever is not listed is gone."""
    report = Report(lambda: None)
    dead, live = report.writer_came(), report.writer_came()
    report.writer_went(dead)
    listed = report.writers_for_registration()
    assert dead not in listed
    assert live in listed
    assert report.writer_came() in listed


def test_a_report_is_bounded_and_the_rest_is_said_later() -> None:
    """I17."""
    report = Report(lambda: None)
    grants = [GrantId(1, serial) for serial in range(MOST_SAID_AT_ONCE + 5)]
    report.grants_cleaned(grants)
    first = report.news(9, 5)
    assert first.cleaned == grants[:MOST_SAID_AT_ONCE]
    report.acknowledged(first)
    assert report.news(9, 5).cleaned == grants[MOST_SAID_AT_ONCE:]


def test_whoever_reports_is_woken_when_there_is_something_to_say() -> None:
    woken: list[bool] = []
    report = Report(lambda: woken.append(report.has_news or report.must_clean))
    number = report.writer_came()
    assert not woken
    report.writer_went(number)
    report.ask_to_clean([GRANT])
    report.grants_cleaned([GRANT])
    report.report_every(50)
    assert woken == [True, True, True, True]
    report.acknowledged(report.news(9, 5))
    assert not report.has_news


def test_a_grant_is_to_be_cleaned_until_it_is_clean_or_the_memory_is_void() -> None:
    report = Report(lambda: None)
    other = GrantId(1, 2)
    report.ask_to_clean([GRANT, other])
    assert report.must_clean
    assert report.grants_to_clean() == [GRANT, other]
    report.grants_cleaned([other])
    assert report.grants_to_clean() == [GRANT], "its writer still writes: it is tried again"
    report.memory_voided()
    assert not report.must_clean
    assert report.news(9, 5).cleaned == []
