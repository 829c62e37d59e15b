"""What the log says of things that fail for a while, and of things that happen a thousand times."""

from __future__ import annotations

import logging

import pytest
from tidegate.runtime import logs
from tidegate.runtime.calm_logs import LINES_MAX, PATIENCE_S, WINDOW_S, Outage, RateLimitedLines

LOG = logs.get("tidegate.test")


def said(caplog: pytest.LogCaptureFixture, at_least: int = logging.INFO) -> list[tuple[str, str]]:
    return [(record.levelname, record.msg) for record in caplog.records if record.levelno >= at_least]


def test_a_short_outage_is_one_line_and_no_warning(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("DEBUG")
    outage = Outage(LOG, "not_answered")
    for now_s in range(int(PATIENCE_S)):
        outage.failed(float(now_s), peer=2)
        assert outage.lasts
    outage.over(PATIENCE_S - 0.5)
    assert not outage.lasts
    assert said(caplog) == [("INFO", "not_answered")]
    assert len(said(caplog, logging.DEBUG)) == PATIENCE_S + 1, "every one can be seen at DEBUG"


def test_an_outage_that_lasts_is_a_warning_then_and_after_each_doubling(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level("INFO")
    outage = Outage(LOG, "not_answered")
    for now_s in range(100):
        outage.failed(float(now_s), peer=2)
    outage.over(100.0)
    warned = [
        record.__dict__["fields"]["for_s"] for record in caplog.records if record.levelname == "WARNING"
    ]
    assert warned == [10, 20, 40, 80]
    assert said(caplog)[-1] == ("INFO", "not_answered_over")
    outage.failed(101.0)
    assert said(caplog)[-1] == ("INFO", "not_answered"), "the next one begins anew"


def test_an_outage_is_logged_again_when_its_cause_changes(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    outage = Outage(LOG, "no_vote")
    for now_s, news in enumerate(["1 and 2", "1 and 2", "2", "2"]):
        outage.failed(float(now_s), news=news, waits_for=news)
    assert said(caplog) == [("INFO", "no_vote")] * 2


def test_an_end_without_a_beginning_is_not_logged(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("DEBUG")
    Outage(LOG, "not_answered").over(5.0)
    assert not caplog.records


def test_of_thousands_a_few_have_lines_and_all_others_are_counted_in_one(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Also when they come in many small batches."""
    caplog.set_level("INFO")
    lines = RateLimitedLines(LOG, "role_changed", "roles_changed")
    for number in range(3000):
        lines.line(number / 1000, "leader" if number % 3 else "follower", partition=number)
        lines.summarize(number / 1000)
    assert said(caplog) == [("INFO", "role_changed")] * LINES_MAX
    lines.summarize(WINDOW_S)
    assert said(caplog)[LINES_MAX:] == [("INFO", "roles_changed")]
    counted = caplog.records[-1].__dict__["fields"]
    assert sum(counted.values()) == 3000 - LINES_MAX
    assert counted.keys() == {"leader", "follower"}
    lines.summarize(3 * WINDOW_S)
    assert len(caplog.records) == LINES_MAX + 1, "and they are told once"
    lines.line(3 * WINDOW_S, "leader", partition=1)
    assert said(caplog)[-1] == ("INFO", "role_changed"), "another window, another few lines"


def test_a_summary_at_once_ends_no_window(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    lines = RateLimitedLines(LOG, "role_changed", "roles_changed")
    for _ in range(LINES_MAX + 5):
        lines.line(0.0, "leader")
    lines.summarize(0.0, at_once=True)
    lines.line(1.0, "leader")
    assert [event for _, event in said(caplog)] == ["role_changed"] * LINES_MAX + ["roles_changed"]
