"""A fetcher lists a partition, and uses an answer for it, as the table in `fetching/followed.py` says."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest
from tidegate.replication.fetching.fetcher import FetcherLimits, LeaderFetcher
from tidegate.replication.fetching.followed import TRANSITIONS, Followed, ListingEvent, ListingState
from tidegate.runtime.clock import ManualClock

KEY = ("t", 0)
#: State -> after each event, in the order of `ListingEvent`; None: it cannot happen.
AFTER: dict[str, tuple[str | None, ...]] = {
    "new": ("listed", "unlisted", None, None, None, None, "new"),
    "unlisted": ("listed", None, "unlisted", "unlisted", "unlisted", None, "unlisted"),
    "listed": (None, None, "moved", "unused", "held back", None, "unlisted"),
    "moved": ("listed", None, "moved", "unused", "held back", None, "unlisted"),
    "unused": ("listed", None, "unused", "unused", "held back", None, "unlisted"),
    "held back": ("listed", None, "held back", "held back", "held back", "unlisted", "unlisted"),
}


def at(state: ListingState) -> tuple[LeaderFetcher, Followed]:
    fetcher = LeaderFetcher(
        2, 1, ManualClock(), cast(Any, None), FetcherLimits(), **dict.fromkeys(
            ("broker_epoch", "flush", "take_offline", "require_room", "throttle"), cast(Any, None)
        )
    )  # fmt: skip
    followed = Followed(cast(Any, SimpleNamespace(key=KEY)), cast(Any, None), state)
    fetcher._followed[KEY] = followed
    fetcher._positions[KEY] = (followed, cast(Any, None))
    fetcher._due[KEY] = None
    return fetcher, followed


@pytest.mark.parametrize("state", ListingState)
@pytest.mark.parametrize("event", ListingEvent)
def test_a_partition_goes_from_state_to_state_as_the_table_says(
    state: ListingState, event: ListingEvent
) -> None:
    expected = AFTER[state.value][list(ListingEvent).index(event)]
    assert (None if (after := TRANSITIONS.get((state, event))) is None else after.value) == expected
    if expected is None:
        return
    fetcher, followed = at(state)
    fetcher._advance(followed, event)
    assert followed.state.value == expected
    assert (KEY in fetcher._due) == (expected != "listed"), "the next fetch lists it"
    assert (KEY in fetcher._positions) == (expected in ("listed", "moved", "unused")), "an answer may come"


@pytest.mark.parametrize("state", ListingState)
@pytest.mark.parametrize("lists_it", [False, True])
def test_the_leader_forgets_what_was_not_used_or_is_held_back(state: ListingState, lists_it: bool) -> None:
    """What was not used only together with the listing that brings it again."""
    fetcher, _ = at(state)
    forgotten = fetcher._forgotten({KEY: cast(Any, None)} if lists_it else {})
    assert bool(forgotten) == ((state, lists_it) in FORGOTTEN)


FORGOTTEN = {(ListingState.UNUSED, True), (ListingState.HELD_BACK, False)}
