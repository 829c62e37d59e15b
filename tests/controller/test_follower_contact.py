"""When a follower was heard, and when it had all that there was, as `describe --replication` shows it."""

from __future__ import annotations

from tidegate.controller.raft.contract import Contact


def test_a_follower_that_never_answered_has_no_times() -> None:
    view = Contact().view(5.0, 0)
    assert (view.silent_s, view.behind_s) == (None, None)


def test_under_load_a_follower_counts_as_caught_up_with_its_last_answer() -> None:
    contact = Contact()
    for now, reached, end in ((1.0, 10, 10), (2.0, 15, 20), (3.0, 20, 30), (4.0, 25, 40)):
        contact.answered(now, reached, end)
    view = contact.view(6.0, 25)
    assert (view.match_index, view.silent_s, view.behind_s) == (25, 2.0, 4.0), (
        "at 2.0 the end was 20, which it had at 3.0"
    )


def test_a_follower_with_the_whole_log_is_caught_up_now() -> None:
    contact = Contact()
    contact.answered(1.0, 3, 9)
    assert contact.view(1.0, 3).behind_s is None
    contact.answered(2.0, 9, 9)
    assert contact.view(2.5, 9).behind_s == 0.5
