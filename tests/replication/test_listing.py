"""A fetcher lists a partition, and uses an answer for it, as the table in `fetching/followed.py` says; what
follower and leader say comes to the other side whole."""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Awaitable, Callable
from dataclasses import fields, replace
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast
from uuid import UUID

import pytest
from kio.schema.errors import ErrorCode as KafkasErrorCode
from kio.schema.fetch.v12 import request as kafkas_request
from kio.schema.fetch.v12 import response as kafkas_response
from kio.schema.types import BrokerId, TopicName
from kio.static.primitive import Records, i32, i32Timedelta, i64
from tidegate.node.cluster.peers import FETCH_VERSION
from tidegate.replication.fetching.configuration import ReplicationLimits
from tidegate.replication.fetching.fetch_session import Facts
from tidegate.replication.fetching.fetcher import FetcherLimits, LeaderFetcher
from tidegate.replication.fetching.followed import TRANSITIONS, Followed, ListingEvent, ListingState
from tidegate.replication.fetching.follower_fetches import FollowerFetches
from tidegate.replication.partition.follower import (
    Answer,
    Append,
    FetchPosition,
    Ignore,
    Restart,
    Truncate,
)
from tidegate.replication.replica.replica import Replica
from tidegate.runtime.clock import ManualClock
from tidegate.storage.log.log import AppendOrigin
from tidegate.tests.eventually import eventually
from tidegate.tests.wire.samples import kio_bytes
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
from tidegate.wire.primitives import INT64

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


async def received(request: FetchRequest) -> FetchPosition | None:
    leader = Leader()
    lookup, unused = cast(Any, lambda _topic, _partition: leader), cast(Any, None)
    fetches = FollowerFetches(ManualClock(), lookup, ReplicationLimits(), unused, unused)
    await fetches.fetch(request)
    return leader.sent


async def test_each_field_of_a_position_comes_to_the_leader() -> None:
    """From the follower's core through request and wire: a field that is left out on the way differs."""
    fetcher, followed = at(ListingState.UNLISTED)
    fetcher._broker_epoch = lambda: 7
    cast(Any, followed.replica).topic_id = Leader.topic_id
    position = FetchPosition(*range(1, 1 + len(fields(FetchPosition))))
    frame = encode_fetch_request(FETCH_VERSION, fetcher._request({KEY: (followed, position)}, 0))
    assert await received(parse_fetch_request(FETCH_VERSION, frame)) == position


async def test_a_position_without_later_fields_has_their_defaults() -> None:
    """So does a follower of an older version fetch: Kafka's own fields, and the topic's id."""
    asked = kafkas_request.FetchPartition(
        partition=i32(0), current_leader_epoch=i32(1), fetch_offset=i64(2), last_fetched_epoch=i32(3),
        log_start_offset=i64(4), partition_max_bytes=i32(5),
    )  # fmt: skip
    message = kafkas_request.FetchRequest(
        replica_id=BrokerId(2), max_wait=i32Timedelta.parse(timedelta()), min_bytes=i32(1),
        topics=(kafkas_request.FetchTopic(topic=TopicName("t"), partitions=(asked,)),),
        forgotten_topics_data=(),
    )  # fmt: skip
    request = parse_fetch_request(FETCH_VERSION, memoryview(kio_bytes(message)))
    request.topics[0][1][0].topic_id = Leader.topic_id
    assert await received(request) == FetchPosition(
        leader_epoch=1, fetch_offset=2, last_fetched_epoch=3, log_start_offset=4
    )


# ---- what changes at a follower that is idle ---------------------------------------------------------------


async def append_record(cluster: Cluster) -> None:
    cluster.managers[1].append_now("t", 0, batch_of("b"), origin=AppendOrigin.CLIENT)


async def append_in_the_next_epoch(cluster: Cluster) -> None:
    cluster.elect(1)
    await append_record(cluster)


async def begin_the_next_epoch(cluster: Cluster) -> None:
    cluster.elect(1)


async def delete_record(cluster: Cluster) -> None:
    assert await cluster.managers[1].delete_records("t", 0, 1, 20_000) == 1


async def delete_record_on_a_full_disk(cluster: Cluster) -> None:
    """It has room again when the follower has tried twice to note the log start: after the answer that brings
    it, and before the fetch that follows."""
    note, tries = cluster.log(2).local.start_note, 0
    write = note.write

    def fail_twice() -> None:
        nonlocal tries
        tries += 1
        if tries <= 2:
            raise OSError(errno.ENOSPC, "no space left")
        write()

    cast(Any, note).write = fail_twice
    await delete_record(cluster)
    assert tries > 2


CHANGES: dict[str, tuple[Callable[[Cluster], Awaitable[None]], ...]] = {
    "leader_epoch": (begin_the_next_epoch,),
    "fetch_offset": (append_record,),
    "last_fetched_epoch": (append_in_the_next_epoch,),
    "log_start_offset": (delete_record, delete_record_on_a_full_disk),
}
"""Field of `FetchPosition` -> what changes it at a follower that has everything, each way that has a trigger
of its own."""


def test_each_field_of_a_position_has_a_change() -> None:
    """A follower in a session lists nothing while it is idle.  So whatever changes a field must lead to
    `ListingEvent.LIST_AGAIN`, or the leader never learns it."""
    names = {each.name for each in fields(FetchPosition)}
    assert CHANGES.keys() == names, "give the field its row in CHANGES: the test below plays it"


@pytest.mark.parametrize(
    ("name", "change"), [(name, change) for name, changes in CHANGES.items() for change in changes]
)
async def test_an_idle_follower_tells_the_leader_each_field_that_changes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, change: Callable[[Cluster], Awaitable[None]]
) -> None:
    received: list[FetchPosition] = []
    receive_fetch = Replica.receive_fetch

    def receive(replica: Replica, node_id: int, epoch: int, sent: FetchPosition, **rest: Any) -> object:
        received.append(sent)
        return receive_fetch(replica, node_id, epoch, sent, **rest)

    monkeypatch.setattr(Replica, "receive_fetch", receive)
    cluster = Cluster(tmp_path, wait_max_ms=50)
    for node in (1, 2):
        cluster.start(node)
    cluster.create(replicas=(1, 2))
    await append_record(cluster)
    fetcher, fetches = cluster.managers[2]._fetchers.by_leader[1], cluster.managers[1]._follower_fetches
    await eventually(
        lambda: cluster.log(2).high_watermark == 1 and not fetcher._due and fetches.waiting, "it is idle"
    )
    before = getattr(received[-1], name)
    changed = asyncio.ensure_future(change(cluster))
    try:
        await eventually(
            lambda: getattr(received[-1], name) > before,
            f"the leader never learns {name}: what changes it does not lead to `ListingEvent.LIST_AGAIN`",
            timeout_s=5,
        )
        await changed
    finally:
        changed.cancel()
        await cluster.stop_all()


NOT_NOTED = {
    "leader_epoch": "`PartitionLeader.check_epoch` has compared it with the leader's own",
    "last_fetched_epoch": "`find_divergence` has compared it with the leader's history",
}
"""Field of `FetchPosition` -> why the leader's `ReplicaProgress` does not have it."""


async def test_the_leader_notes_each_field_of_a_position(cluster: Cluster) -> None:
    cluster.broker_epochs[9] = 1
    cluster.create(replicas=(1, 9), isr=(1,), min_isr=1)
    for _ in range(3):
        cluster.managers[1].append_now("t", 0, batch_of("a"), origin=AppendOrigin.CLIENT, required_acks=1)
    replica, sent = cluster.managers[1].replica("t", 0), FetchPosition(1, 3, 1, 2)
    assert replica.receive_fetch(9, 1, sent, now_s=0.0, arrival=True) is None
    progress = replica.require_leader().follower(9)
    for name in {each.name for each in fields(FetchPosition)} - NOT_NOTED.keys():
        kept = getattr(progress, name, None)
        assert kept == getattr(sent, name), (
            f"`Replica.receive_fetch` notes {name} nowhere, or give the reason"
        )


# ---- what a leader says ------------------------------------------------------------------------------------

NO_NEWS = {
    "error": "a partition leaves the session when its answer is an error",
    "diverging_epoch": "it is the answer to a position; the leader's history changes with its `leader` alone",
    "records": "whatever appends or commits them wakes the watchers; an answer with records leaves at once",
    "may_have_offset_gaps": "it is said of the records that come with it, and read with them",
    "cleaned_at_most": "it is said of the records that come with it",
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
        "may_have_offset_gaps": (read, True), "cleaned_at_most": (read, 3),
    }  # fmt: skip
    for name in (field.name for field in fields(Answer)):
        answer, expected = shown[name]
        assert getattr(answer, name) == expected, name


@pytest.mark.parametrize(
    ("content", "expected"), [(b"", -1), (b"\0\0\5", -1), (INT64.pack(5), 5), (INT64.pack(5) + b"later", 5)]
)
def test_what_another_version_says_of_gaps_is_read_as_far_as_known(content: bytes, expected: int) -> None:
    ours = FetchResponsePartition(0, may_have_offset_gaps=True, cleaned_at_most=5)
    frame = b"".join(bytes(part) for part in encode_fetch_response(FETCH_VERSION, [("t", [ours])]))
    known = bytes((16, 8)) + INT64.pack(5)
    assert frame.count(known) == 1
    frame = frame.replace(known, bytes((16, len(content))) + content)
    ((_, (part,)),) = parse_fetch_response(FETCH_VERSION, memoryview(frame)).topics
    assert (part.may_have_offset_gaps, part.cleaned_at_most) == (True, expected)


def test_an_answer_without_later_fields_has_their_defaults() -> None:
    """So does a leader of an older version answer: Kafka's own fields."""
    part = kafkas_response.PartitionData(
        partition_index=i32(0), error_code=KafkasErrorCode.none, high_watermark=i64(7),
        log_start_offset=i64(6), aborted_transactions=None, records=Records(b"r"),
    )  # fmt: skip
    topic = kafkas_response.FetchableTopicResponse(topic=TopicName("t"), partitions=(part,))
    message = kafkas_response.FetchResponse(
        throttle_time=i32Timedelta.parse(timedelta()), error_code=KafkasErrorCode.none, responses=(topic,)
    )
    ((_, (answered,)),) = parse_fetch_response(FETCH_VERSION, memoryview(kio_bytes(message))).topics
    assert followers(answered) == Answer(
        error=ErrorCode.NONE, high_watermark=7, log_start_offset=6, diverging_epoch=None, records=b"r"
    )


OTHER_ANSWERS: dict[str, Any] = {
    "error": ErrorCode.NOT_LEADER_OR_FOLLOWER, "high_watermark": 2, "log_start_offset": 0,
    "diverging_epoch": (0, 0), "records": b"", "may_have_offset_gaps": True, "cleaned_at_most": 2,
}  # fmt: skip
"""Field of `Answer` -> a value with which the follower's log becomes another one than with the value of the
test below."""


@pytest.mark.parametrize("name", [each.name for each in fields(Answer)])
async def test_each_field_of_an_answer_comes_to_the_followers_log(cluster: Cluster, name: str) -> None:
    """Through the core's action and `Replica.carry_out`."""
    cluster.cut.add((2, 1))
    cluster.create(partitions=2, replicas=(1, 2), isr=(1,), min_isr=1)
    for _ in range(3):
        cluster.managers[1].append_now("t", 0, batch_of("a"), origin=AppendOrigin.CLIENT, required_acks=1)
    records = bytes(cluster.log(1).read(0, 1000, upper_offset=3).data)
    first = Answer(
        error=ErrorCode.NONE, high_watermark=3, log_start_offset=1, diverging_epoch=None, records=records
    )
    assert name in OTHER_ANSWERS, "give the field its row in OTHER_ANSWERS"
    second = replace(first, **{name: OTHER_ANSWERS[name]})
    logs = [
        log_after(answer, cluster.managers[2].replica("t", number))
        for number, answer in enumerate((first, second))
    ]
    assert logs[0] != logs[1], f"`on_answer` or `carry_out` loses {name}, or `log_after` does not see it"


def log_after(answer: Answer, replica: Replica) -> tuple[object, ...]:
    """What becomes of the log of a follower that has nothing yet."""
    core, log = replica.follower, replica.log
    assert core is not None
    action = core.on_answer(core.next_fetch(log), answer, log)
    if isinstance(action, Append | Truncate | Restart):
        replica.carry_out(action)
    noted = log.local.start_note.wanted, log.config.may_have_offset_gaps, log.cleaned_at_most
    return log.log_end_offset, log.high_watermark, log.log_start_offset, *noted


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
