"""A fetcher lists a partition, and uses an answer for it, as the table in `fetching/followed.py` says; what
follower and leader say comes to the other side whole."""

from __future__ import annotations

from dataclasses import fields
from types import SimpleNamespace
from typing import Any, cast
from uuid import UUID

import pytest
from tidegate.node.cluster.peers import FETCH_VERSION
from tidegate.replication.fetching.configuration import ReplicationLimits
from tidegate.replication.fetching.fetch_session import Facts
from tidegate.replication.fetching.fetcher import FetcherLimits, LeaderFetcher
from tidegate.replication.fetching.followed import TRANSITIONS, Followed, ListingEvent, ListingState
from tidegate.replication.fetching.follower_fetches import FollowerFetches
from tidegate.replication.partition.follower import Answer, FetchPosition, Ignore
from tidegate.runtime.clock import ManualClock
from tidegate.storage.log.log import AppendOrigin
from tidegate.tests.eventually import eventually
from tidegate.wire.errors import ErrorCode, KafkaError
from tidegate.wire.fetch import (
    FetchPartition,
    FetchRequest,
    FetchResponsePartition,
    encode_fetch_request,
    encode_fetch_response,
    parse_fetch_request,
    parse_fetch_response,
)

from .cluster import TOPIC_ID, Cluster, batch_of

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
            ("broker_epoch", "flush", "take_offline", "require_room", "throttle", "on_failure"),
            cast(Any, None),
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


class Leader:
    """A replica that notes the position that a follower's fetch has."""

    topic_id = UUID(int=9)

    def __init__(self) -> None:
        self.sent: FetchPosition | None = None

    def receive_fetch(self, _node_id: int, _broker_epoch: int, sent: FetchPosition, **_: object) -> None:
        self.sent = sent
        raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, "a test")


async def test_each_field_of_a_position_comes_to_the_leader() -> None:
    """From the follower's core through request and wire: a field that is left out on the way differs."""
    fetcher, followed = at(ListingState.UNLISTED)
    leader = Leader()
    fetcher._broker_epoch = lambda: 7
    cast(Any, followed.replica).topic_id = leader.topic_id
    position = FetchPosition(*range(1, 1 + len(fields(FetchPosition))))
    frame = encode_fetch_request(FETCH_VERSION, fetcher._request({KEY: (followed, position)}, 0))
    lookup, unused = cast(Any, lambda _topic, _partition: leader), cast(Any, None)
    fetches = FollowerFetches(ManualClock(), lookup, ReplicationLimits(), unused, unused)
    await fetches.fetch(parse_fetch_request(FETCH_VERSION, frame))
    assert leader.sent == position


NO_NEWS = {
    "error": "a partition leaves the session when its answer is an error",
    "diverging_epoch": "it is the answer to a position; the leader's history changes with its `leader` alone",
    "records": "whatever appends or commits them wakes the watchers; an answer with records leaves at once",
    "may_have_offset_gaps": "it is said of the records that come with it, and read with them",
}
"""Field of `Answer` -> why a change of it needs no field of `Facts`."""


def test_what_an_answer_says_is_news_of_the_session_or_needs_none() -> None:
    """A field that is neither would not reach a follower that is idle."""
    of_answers = {each.name for each in fields(Answer)}
    assert NO_NEWS.keys() == of_answers - set(Facts._fields)
    assert set(Facts._fields) - of_answers == {"leader"}


async def test_each_field_of_an_answer_comes_to_the_followers_core(cluster: Cluster) -> None:
    """From a real leader's log through wire and fetcher: for each field one answer that shows it."""
    cluster.broker_epochs[9] = 1
    cluster.create(replicas=(1, 9), isr=(1,), min_isr=1)
    manager = cluster.managers[1]
    for value in ("a", "b", "c"):
        manager.append_now("t", 0, batch_of(value), origin=AppendOrigin.CLIENT, required_acks=1)
    log = manager.replica("t", 0).log
    await eventually(lambda: log.high_watermark == 3, "the records are committed")
    log.advance_log_start(1)
    log.allow_offset_gaps()
    records = bytes(log.read(2, 1000, upper_offset=3).data)

    async def answer_to(offset: int, leader_epoch: int, last_epoch: int) -> Answer:
        asked = FetchPartition(0, offset, 1000, leader_epoch, last_epoch, topic_id=TOPIC_ID)
        response = await manager.fetch(
            FetchRequest(replica_id=9, replica_epoch=1, session_epoch=0, topics=[("t", [asked])])
        )
        frame = b"".join(bytes(part) for part in encode_fetch_response(FETCH_VERSION, response.topics))
        ((_, (part,)),) = parse_fetch_response(FETCH_VERSION, memoryview(frame)).topics
        return followers(part)

    read, diverged, refused = await answer_to(2, 1, 1), await answer_to(2, 1, 0), await answer_to(2, 7, 1)
    shown: dict[str, tuple[Answer, object]] = {
        "error": (refused, ErrorCode.UNKNOWN_LEADER_EPOCH), "high_watermark": (read, 3),
        "log_start_offset": (read, 1), "diverging_epoch": (diverged, (0, 1)), "records": (read, records),
        "may_have_offset_gaps": (read, True),
    }  # fmt: skip
    for name in (field.name for field in fields(Answer)):
        answer, expected = shown[name]
        assert getattr(answer, name) == expected, name


def followers(part: FetchResponsePartition) -> Answer:
    """What the fetcher makes of it for the follower's core."""
    answers: list[Answer] = []

    def on_answer(_sent: FetchPosition, answer: Answer, _log: object) -> Ignore:
        answers.append(answer)
        return Ignore.STALE

    fetcher, followed = at(ListingState.LISTED)
    cast(Any, followed.replica).log = None
    followed.core = cast(Any, SimpleNamespace(on_answer=on_answer))
    fetcher._on_answer(followed, FetchPosition(1, 2, 3, 4), part)
    return answers[0]
