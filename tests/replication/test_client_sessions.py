"""KIP-227 for clients: which clients get a session, what its answers contain, and which session is evicted
when the cache is full."""

from __future__ import annotations

import asyncio
from itertools import count
from uuid import UUID

import pytest
from tidegate.controller.state.model import TOPIC_NAME_LENGTH_MAX
from tidegate.replication.fetching.client_sessions import EVICTION_S, ClientSession, ClientSessions
from tidegate.wire.errors import ErrorCode
from tidegate.wire.fetch import FetchPartition, FetchRequest, FetchResponse
from tidegate.wire.fetch import FetchResponsePartition as Answer

from .cluster import TOPIC_ID, Cluster
from .test_manager import append, write

IDS = {UUID(int=1): "t", UUID(int=2): "u"}


def asked(
    *partitions: tuple[str, int],
    session: tuple[int, int] = (0, 0),
    forgotten: tuple[tuple[str, int], ...] = (),
) -> FetchRequest:
    request = FetchRequest(session_id=session[0], session_epoch=session[1])
    request.topics = [(topic, [FetchPartition(partition, 0, 1 << 20)]) for topic, partition in partitions]
    request.forgotten_topics = [(topic, [partition]) for topic, partition in forgotten]
    return request


def by_id(*partitions: tuple[UUID, int], session: tuple[int, int] = (0, 0)) -> FetchRequest:
    request = FetchRequest(session_id=session[0], session_epoch=session[1])
    request.topics_by_id = [
        (topic, [FetchPartition(partition, 0, 1 << 20, topic_id=topic)]) for topic, partition in partitions
    ]
    return request


def cache(sessions_max: int = 3, partitions_max: int = 100) -> ClientSessions:
    numbers = count(1)
    return ClientSessions(lambda: next(numbers) / 1_000_000, sessions_max, partitions_max=partitions_max)


def begin(sessions: ClientSessions, size: int = 1, now_s: float = 0.0) -> ClientSession:
    opened = sessions.open(asked(*(("t", number) for number in range(size))), False, IDS.get, now_s)
    assert isinstance(opened, ClientSession)
    return opened


def goes_on(
    sessions: ClientSessions, session_id: int, epoch: int, now_s: float = 0.0
) -> ClientSession | ErrorCode:
    return sessions.open(asked(session=(session_id, epoch)), False, IDS.get, now_s)


def test_a_session_is_its_principals_alone() -> None:
    sessions = cache()
    opened = sessions.open(asked(("t", 0)), False, IDS.get, 0.0, "User:alice")
    assert isinstance(opened, ClientSession)
    session_id = opened.session_id
    for epoch in (1, 2):
        forged = sessions.open(asked(session=(session_id, epoch)), False, IDS.get, 0.0, "User:mallory")
        assert forged is ErrorCode.FETCH_SESSION_ID_NOT_FOUND
    for epoch in (0, -1):
        sessions.open(asked(("t", 0), session=(session_id, epoch)), False, IDS.get, 0.0, "User:mallory")
    assert sessions.open(asked(session=(session_id, 1)), False, IDS.get, 0.0, "User:alice") is opened


def test_a_session_goes_on_with_the_partitions_that_it_has() -> None:
    sessions = cache()
    own = begin(sessions, 2)
    assert own.session_id > 0
    assert len(sessions) == 1
    later = sessions.open(
        asked(("u", 5), session=(own.session_id, 1), forgotten=(("t", 0),)), False, IDS.get, 1.0
    )
    assert later is own
    assert list(own.parts) == [("t", 1), ("u", 5)]
    assert sessions.partitions == 2
    assert goes_on(sessions, own.session_id, 2) is own


NO_TOPICS = ["x" * (TOPIC_NAME_LENGTH_MAX + 1), "x" * (7 << 20), "\U0001f30a" * TOPIC_NAME_LENGTH_MAX]


@pytest.mark.parametrize("name", NO_TOPICS, ids=["one too long", "7 MiB", "four bytes each"])
def test_a_text_that_cannot_be_a_topics_name_is_kept_in_no_session(name: str) -> None:
    sessions = cache()
    opened = sessions.open(asked((name, 0)), False, IDS.get, 0.0)
    assert isinstance(opened, ClientSession)
    assert opened.session_id == 0
    assert list(opened.parts) == [(name, 0)]
    own = begin(sessions)
    later = sessions.open(asked((name, 0), session=(own.session_id, 1)), False, IDS.get, 0.0)
    assert later is own, "it is answered, and hears that its session is over"
    assert own.session_id == 0, "it is answered, and hears that its session is over"
    assert len(sessions) == sessions.partitions == 0
    longest = sessions.open(asked(("x" * TOPIC_NAME_LENGTH_MAX, 0)), False, IDS.get, 0.0)
    assert isinstance(longest, ClientSession)
    assert longest.session_id > 0


@pytest.mark.parametrize("epoch", [2, 0x7FFFFFFF])
def test_a_number_out_of_its_order_is_refused_and_the_session_stays(epoch: int) -> None:
    sessions = cache()
    own = begin(sessions)
    assert goes_on(sessions, own.session_id, epoch) is ErrorCode.INVALID_FETCH_SESSION_EPOCH
    assert goes_on(sessions, own.session_id, 1) is own


def test_a_session_that_is_not_known_is_refused() -> None:
    assert goes_on(cache(), 77, 1) is ErrorCode.FETCH_SESSION_ID_NOT_FOUND


def test_names_and_ids_are_not_mixed_in_a_session() -> None:
    sessions = cache()
    own = begin(sessions)
    assert (
        sessions.open(by_id(session=(own.session_id, 1)), True, IDS.get, 0.0)
        is ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR
    )
    assert goes_on(sessions, own.session_id, 1) is own


@pytest.mark.parametrize("epoch", [0, -1])
def test_a_full_fetch_ends_the_session_that_it_names(epoch: int) -> None:
    sessions = cache()
    own = begin(sessions).session_id
    opened = sessions.open(asked(("t", 0), session=(own, epoch)), False, IDS.get, 0.0)
    assert isinstance(opened, ClientSession)
    assert (opened.session_id > 0) is (epoch == 0)
    assert goes_on(sessions, own, 1) is ErrorCode.FETCH_SESSION_ID_NOT_FOUND


def test_a_session_without_partitions_ends() -> None:
    sessions = cache()
    own = begin(sessions)
    before = own.session_id
    opened = sessions.open(asked(session=(before, 1), forgotten=(("t", 0),)), False, IDS.get, 0.0)
    assert opened is own
    assert own.session_id == 0
    assert len(sessions) == sessions.partitions == 0


def test_numbers_begin_again_at_1_after_the_largest() -> None:
    sessions = cache()
    own = begin(sessions)
    own.epoch = 0x7FFFFFFF
    assert goes_on(sessions, own.session_id, 0x7FFFFFFF) is own
    assert goes_on(sessions, own.session_id, 1) is own


def test_a_topic_that_becomes_known_is_found_within_the_session() -> None:
    sessions = cache()
    opened = sessions.open(by_id((UUID(int=3), 0)), True, IDS.get, 0.0)
    assert isinstance(opened, ClientSession)
    assert opened.parts[UUID(int=3), 0].topic is None
    sessions.open(by_id(session=(opened.session_id, 1)), True, {UUID(int=3): "new"}.get, 0.0)
    assert opened.parts[UUID(int=3), 0].topic == "new"


# The sizes and ages of the sessions that fill the cache, the size of a new one, and which has to go; -1:
# none, and it gets none.
EVICTIONS = {
    "all young": ([(1, 10), (1, 20), (1, 30)], 9, -1),
    "old, and smaller than the new one": ([(5, 130), (2, 130), (3, 130)], 3, 1),
    "old, and as large as the new one": ([(3, 130), (3, 130), (3, 130)], 3, -1),
    "old and small, beside young and smaller": ([(5, 10), (3, 130), (1, 10)], 4, 1),
}


@pytest.mark.parametrize(("there", "size", "gone"), EVICTIONS.values(), ids=EVICTIONS)
def test_a_full_cache_gives_up_old_and_smaller_sessions_only(
    there: list[tuple[int, int]], size: int, gone: int
) -> None:
    now_s = 1_000.0
    sessions = cache(partitions_max=1000)
    kept = []
    for parts, age_s in there:
        session = begin(sessions, parts, now_s - age_s)
        session.used_s = now_s
        kept.append(session)
    made = begin(sessions, size, now_s)
    assert (made.session_id > 0) is (gone >= 0)
    assert [number for number, session in enumerate(kept) if session.session_id == 0] == [gone] * (gone >= 0)
    assert len(sessions) == 3
    assert sessions.evictions == (gone >= 0)


def test_a_session_that_was_long_not_used_goes_first_however_large() -> None:
    sessions = cache()
    large, *_ = begin(sessions, 9), begin(sessions), begin(sessions)
    assert begin(sessions, 1, EVICTION_S + 1).session_id > 0
    assert large.session_id == 0


def test_partitions_are_bounded_over_all_sessions() -> None:
    sessions = cache(partitions_max=10)
    first = begin(sessions, 6)
    assert begin(sessions, 5).session_id == 0
    assert begin(sessions, 11).session_id == 0
    more = [("t", number) for number in range(20)]
    refused = sessions.open(asked(*more, session=(first.session_id, 1)), False, IDS.get, 0.0)
    assert refused is ErrorCode.FETCH_SESSION_ID_NOT_FOUND
    assert len(sessions) == sessions.partitions == 0
    assert begin(sessions, 10).session_id > 0


def test_without_slots_a_client_is_served_without_a_session() -> None:
    assert begin(cache(sessions_max=0), 3).session_id == 0


def test_an_incremental_fetch_answers_changes_and_every_error() -> None:
    sessions = cache()
    own = begin(sessions, 3)
    part = own.parts["t", 0]

    def answer(
        watermark: int = 5, start: int = 0, error: ErrorCode = ErrorCode.NONE, *, records: bytes = b""
    ) -> Answer:
        return Answer(0, error, high_watermark=watermark, log_start_offset=start, records=records)

    assert own.answered(part, answer())
    assert not own.answered(part, answer())
    assert own.answered(part, answer(6))
    assert own.answered(part, answer(6, 1))
    assert not own.answered(part, answer(6, 1))
    failed = answer(-1, -1, ErrorCode.NOT_LEADER_OR_FOLLOWER)
    assert own.answered(part, failed), "errors are answered each time"
    assert own.answered(part, failed), "errors are answered each time"
    assert own.answered(part, answer(6, 1)), "and that they are over, too"
    assert list(own.parts) == [("t", 0), ("t", 1), ("t", 2)]
    assert own.answered(part, answer(6, 1, records=b"x"))
    assert list(own.parts) == [("t", 1), ("t", 2), ("t", 0)], "a partition with records goes to the end"


# ---- fetches of clients ------------------------------------------------------------------------------------


def of(
    *, session: tuple[int, int] = (0, -1), topics: tuple[tuple[UUID, int, int], ...] = (), wait_ms: int = 0
) -> FetchRequest:
    """A fetch by ids: (topic id, partition, offset)."""
    request = FetchRequest(max_wait_ms=wait_ms, session_id=session[0], session_epoch=session[1])
    request.topics_by_id = [
        (topic, [FetchPartition(number, at, 1 << 20, topic_id=topic)]) for topic, number, at in topics
    ]
    return request


async def fetched(cluster: Cluster, request: FetchRequest) -> FetchResponse:
    return await cluster.managers[1].fetch(request, by_id=True)


async def test_a_session_answers_only_what_changed(cluster: Cluster) -> None:
    cluster.create(partitions=2)
    await write(cluster.managers[1], "a")
    begun = await fetched(cluster, of(session=(0, 0), topics=((TOPIC_ID, 0, 1), (TOPIC_ID, 1, 0))))
    assert [part.partition for _, parts in begun.topics_by_id for part in parts] == [
        0,
        1,
    ]
    assert begun.session_id > 0
    assert (await fetched(cluster, of(session=(begun.session_id, 1)))).topics_by_id == []
    await write(cluster.managers[1], "b", partition=1)
    ((topic, (part,)),) = (await fetched(cluster, of(session=(begun.session_id, 2)))).topics_by_id
    assert topic == TOPIC_ID
    assert part.partition == 1
    assert len(part.records) > 0


async def test_a_throttled_fetch_gets_nothing_and_its_session_goes_on(cluster: Cluster) -> None:
    """KIP-219: a client takes an empty full answer for none, so no session begins with it."""
    cluster.create()
    leader, full = cluster.managers[1], ((TOPIC_ID, 0, 0),)
    refused = leader.throttled_fetch(of(session=(0, 0), topics=full), by_id=True)
    assert (refused.error, refused.session_id, refused.topics_by_id) == (ErrorCode.NONE, 0, [])
    session_id = (await fetched(cluster, of(session=(0, 0), topics=full))).session_id
    empty = leader.throttled_fetch(of(session=(session_id, 1)), by_id=True)
    assert (empty.error, empty.session_id, empty.topics_by_id) == (ErrorCode.NONE, session_id, [])
    again = leader.throttled_fetch(of(session=(session_id, 1)), by_id=True)
    assert again.error is ErrorCode.INVALID_FETCH_SESSION_EPOCH
    assert (await fetched(cluster, of(session=(session_id, 2)))).session_id == session_id


async def test_a_session_fetch_is_woken_by_a_partition_it_did_not_name(cluster: Cluster) -> None:
    cluster.create(partitions=2)
    begun = await fetched(cluster, of(session=(0, 0), topics=((TOPIC_ID, 0, 0), (TOPIC_ID, 1, 0))))
    waiting = asyncio.ensure_future(fetched(cluster, of(session=(begun.session_id, 1), wait_ms=60_000)))
    await asyncio.sleep(0)
    assert not waiting.done()
    await write(cluster.managers[1], "a", partition=1)
    ((_, (part,)),) = (await asyncio.wait_for(waiting, 20)).topics_by_id
    assert part.partition == 1


async def test_a_fetch_that_another_of_its_session_overtook_is_refused(cluster: Cluster) -> None:
    cluster.create()
    begun = await fetched(cluster, of(session=(0, 0), topics=((TOPIC_ID, 0, 0),)))
    waiting = asyncio.ensure_future(fetched(cluster, of(session=(begun.session_id, 1), wait_ms=60_000)))
    await asyncio.sleep(0)
    assert (await fetched(cluster, of(session=(begun.session_id, 2)))).error is ErrorCode.NONE
    await write(cluster.managers[1], "a")
    assert (await asyncio.wait_for(waiting, 20)).error is ErrorCode.INVALID_FETCH_SESSION_EPOCH


async def test_an_id_that_no_topic_has_ends_no_wait_for_the_others(cluster: Cluster) -> None:
    cluster.create()
    append(cluster.managers[1], "a")
    unknown = (UUID(int=5), 0, 0)
    waiting = asyncio.ensure_future(fetched(cluster, of(topics=(unknown, (TOPIC_ID, 0, 1)), wait_ms=60_000)))
    await asyncio.sleep(0)
    assert not waiting.done()
    await write(cluster.managers[1], "b")
    known, refused = (await asyncio.wait_for(waiting, 20)).topics_by_id
    assert known[0] == TOPIC_ID
    assert known[1][0].error is ErrorCode.NONE
    assert refused[0] == UUID(int=5)
    assert refused[1][0].error is ErrorCode.UNKNOWN_TOPIC_ID
    alone = await asyncio.wait_for(fetched(cluster, of(topics=(unknown,), wait_ms=60_000)), 20)
    assert alone.topics_by_id[0][1][0].error is ErrorCode.UNKNOWN_TOPIC_ID


async def test_the_id_of_an_earlier_topic_of_the_name_reads_nothing(cluster: Cluster) -> None:
    cluster.create()
    cluster.topic_names[UUID(int=99)] = "t"
    await write(cluster.managers[1], "a")
    ((_, (part,)),) = (await fetched(cluster, of(topics=((UUID(int=99), 0, 0),)))).topics_by_id
    assert part.error is ErrorCode.INCONSISTENT_TOPIC_ID
    assert not part.records
