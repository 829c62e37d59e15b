"""The end of a session in the node's log: a line at INFO, and a WARNING only when it lasts."""

from __future__ import annotations

import logging

import pytest
from tidegate.replication.partition.lease import LeadershipLease
from tidegate.runtime.calm_logs import PATIENCE_S


def said(caplog: pytest.LogCaptureFixture) -> list[tuple[str, str]]:
    return [(record.levelname, record.msg) for record in caplog.records if record.levelno >= logging.INFO]


@pytest.fixture
def lease(caplog: pytest.LogCaptureFixture) -> LeadershipLease:
    caplog.set_level(logging.INFO)
    return LeadershipLease(1, lambda: True)


def test_a_session_that_is_lost_for_a_moment_asks_nothing_of_an_operator(
    lease: LeadershipLease, caplog: pytest.LogCaptureFixture
) -> None:
    lease.suspend("no answer", 3, 100.0)
    lease.summarize(3, 105.0)
    lease.resume(3, 106.0)
    lease.summarize(3, 200.0)
    assert said(caplog) == [("INFO", "leadership_suspended"), ("INFO", "leadership_resumed")]


def test_leadership_that_stays_suspended_is_a_warning_again_and_again(
    lease: LeadershipLease, caplog: pytest.LogCaptureFixture
) -> None:
    lease.suspend("no answer", 3, 100.0)
    for second in range(101, 100 + 5 * int(PATIENCE_S)):
        lease.summarize(3, float(second))
    levels = [level for level, event in said(caplog) if event == "leadership_suspended"]
    assert levels == ["INFO", "WARNING", "WARNING", "WARNING"]


def test_each_lost_session_is_logged(lease: LeadershipLease, caplog: pytest.LogCaptureFixture) -> None:
    for begin in (100.0, 110.0):
        lease.suspend("no answer", 3, begin)
        lease.resume(3, begin + 1)
    assert [event for _, event in said(caplog)].count("leadership_suspended") == 2
