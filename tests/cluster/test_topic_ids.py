"""Clients that know topics by their ids (KIP-516), and what else Kafka 4.1 added to the data plane: raw
requests to a node."""

from __future__ import annotations

from typing import Any
from uuid import UUID

import pytest
from tidegate.wire import api
from tidegate.wire.api import ApiKey
from tidegate.wire.errors import ErrorCode

from .protocol_cases import World, fresh, new_topic_with_id, new_transaction, records

pytestmark = [pytest.mark.cluster, pytest.mark.xdist_group("conformance"), pytest.mark.timeout(120)]

NOWHERE = UUID(int=0x1234)
FETCH_VERSIONS = range(13, api.TABLE[ApiKey.FETCH].high + 1)


def wanted(topic_id: UUID, *offsets: int) -> dict[str, Any]:
    parts = [
        {"partition": number, "current_leader_epoch": -1, "fetch_offset": offset, "last_fetched_epoch": -1,
         "log_start_offset": -1, "partition_max_bytes": 1 << 20}
        for number, offset in enumerate(offsets)
    ]  # fmt: skip
    return {"topic_id": topic_id, "partitions": parts}


async def fetch(
    world: World, version: int, *topics: dict[str, Any], session: tuple[int, int] = (0, -1)
) -> Any:
    return await world.ask(
        ApiKey.FETCH, version, replica_id=-1, max_wait=0, min_bytes=1, max_bytes=1 << 24, isolation_level=0,
        session_id=session[0], session_epoch=session[1], topics=list(topics), forgotten_topics_data=[],
        rack_id="",
    )  # fmt: skip


async def produce(world: World, topic_id: UUID, data: bytes, **options: Any) -> Any:
    topic = {"topic_id": topic_id, "partition_data": [{"index": 0, "records": data}]}
    answer = await world.ask(
        ApiKey.PRODUCE,
        13,
        **{"transactional_id": None, "acks": -1, "timeout": 10_000, "topic_data": [topic]} | options,
    )
    assert answer.responses[0].topic_id == topic_id
    return answer.responses[0].partition_responses[0]


async def delete(world: World, name: str) -> None:
    answer = await world.ask(
        ApiKey.DELETE_TOPICS, 6, topics=[{"name": name, "topic_id": None}], timeout=10_000
    )
    assert answer.responses[0].error_code == ErrorCode.NONE


async def create(world: World, name: str) -> UUID:
    topic = {"name": name, "num_partitions": 1, "replication_factor": 1, "assignments": [], "configs": []}
    answer = await world.ask(ApiKey.CREATE_TOPICS, 7, topics=[topic], timeout=10_000, validate_only=False)
    assert answer.topics[0].error_code == ErrorCode.NONE
    topic_id: UUID = answer.topics[0].topic_id
    return topic_id


@pytest.mark.parametrize("version", FETCH_VERSIONS)
async def test_a_topic_is_written_and_read_by_its_id(world: World, version: int) -> None:
    _, topic_id = await new_topic_with_id(world, 2)
    assert (await produce(world, topic_id, records(3))).error_code == ErrorCode.NONE
    answer = await fetch(world, version, wanted(topic_id, 0, 0), wanted(NOWHERE, 0))
    assert answer.error_code == ErrorCode.NONE
    assert answer.session_id == 0
    known, unknown = answer.responses
    assert known.topic_id == topic_id
    assert [part.high_watermark for part in known.partitions] == [3, 0]
    assert len(known.partitions[0].records) > 0
    assert unknown.topic_id == NOWHERE
    assert unknown.partitions[0].error_code == ErrorCode.UNKNOWN_TOPIC_ID


async def test_the_id_of_a_deleted_topic_is_not_taken_for_its_successor(world: World) -> None:
    name = fresh("recreated")
    before = await create(world, name)
    begun = await fetch(world, 17, wanted(before, 0), session=(0, 0))
    await delete(world, name)
    gone = await fetch(world, 17, session=(begun.session_id, 1))
    assert gone.responses[0].partitions[0].error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    after = await create(world, name)
    assert (await produce(world, after, records(1))).base_offset == 0
    assert (await produce(world, before, records(1))).error_code == ErrorCode.UNKNOWN_TOPIC_ID
    other = await fetch(world, 17, session=(begun.session_id, 2))
    assert other.responses[0].partitions[0].error_code == ErrorCode.INCONSISTENT_TOPIC_ID
    whole = await fetch(world, 17, wanted(before, 0))
    assert whole.responses[0].partitions[0].error_code == ErrorCode.UNKNOWN_TOPIC_ID


@pytest.mark.parametrize("version", [7, 12, *FETCH_VERSIONS])
async def test_a_session_answers_what_is_new_in_every_version(world: World, version: int) -> None:
    name, topic_id = await new_topic_with_id(world, 2)
    topic = wanted(topic_id, 0, 0) | {"topic": name}
    begun = await fetch(world, version, topic, session=(0, 0))
    assert begun.session_id > 0
    assert len(begun.responses[0].partitions) == 2
    assert (await fetch(world, version, session=(begun.session_id, 1))).responses == ()
    assert (await produce(world, topic_id, records(2))).error_code == ErrorCode.NONE
    news = await fetch(world, version, session=(begun.session_id, 2))
    assert news.session_id == begun.session_id
    assert [part.partition_index for part in news.responses[0].partitions] == [0]
    stale = await fetch(world, version, session=(begun.session_id, 2))
    assert stale.error_code == ErrorCode.INVALID_FETCH_SESSION_EPOCH
    assert stale.session_id == 0


async def test_a_transaction_is_written_by_topic_id(world: World) -> None:
    _, topic_id = await new_topic_with_id(world)
    name, transaction = await new_transaction(world, partition=False)
    identity = {key: transaction[key] for key in ("producer_id", "producer_epoch")}
    data = records(2, **identity, base_sequence=0, transactional=True)
    assert (await produce(world, topic_id, data, transactional_id=name)).error_code == ErrorCode.NONE
    answer = await world.ask(ApiKey.END_TXN, 5, transactional_id=name, **identity, committed=True)
    assert answer.error_code == ErrorCode.NONE


# The version and the special timestamp, and the offset that is found, or the error.
TIMES = [
    (7, -4, ErrorCode.UNSUPPORTED_VERSION),
    (8, -4, 0),
    (8, -5, ErrorCode.UNSUPPORTED_VERSION),
    (9, -5, -1),
    (10, -4, 0),
    (10, -5, -1),
    (10, -6, ErrorCode.UNSUPPORTED_VERSION),
]


@pytest.mark.parametrize(("version", "timestamp", "found"), TIMES)
async def test_without_tiers_the_earliest_offset_is_local_and_none_is_tiered(
    world: World, version: int, timestamp: int, found: int | ErrorCode
) -> None:
    part = {"partition_index": 0, "current_leader_epoch": -1, "timestamp": timestamp}
    topics = [{"name": world.topic, "partitions": [part]}, {"name": "nothing", "partitions": [part]}]
    answer = await world.ask(
        ApiKey.LIST_OFFSETS, version, replica_id=-1, isolation_level=0, topics=topics, timeout=1000
    )
    here, nothing = (topic.partitions[0] for topic in answer.topics)
    if isinstance(found, ErrorCode):
        assert here.error_code == nothing.error_code == found, "the version is looked at first"
    else:
        assert (here.error_code, here.offset) == (ErrorCode.NONE, found)
        assert nothing.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


@pytest.mark.parametrize("pattern", ["(", "a(?=b)", "\\"])
async def test_a_pattern_for_transactional_ids_that_is_none_is_refused(world: World, pattern: str) -> None:
    fields = {
        "state_filters": [],
        "producer_id_filters": [],
        "duration_filter": -1,
        "transactional_id_pattern": pattern,
    }
    assert (
        await world.ask(ApiKey.LIST_TRANSACTIONS, 2, **fields)
    ).error_code == ErrorCode.INVALID_REGULAR_EXPRESSION


async def test_transactions_are_listed_by_a_pattern_of_the_whole_id(world: World) -> None:
    name, _ = await new_transaction(world, partition=False)
    for pattern, listed in ((name, True), (name[:-1], False), (f"(x|{name[:5]}).*", True), ("", True)):
        fields = {
            "state_filters": [],
            "producer_id_filters": [],
            "duration_filter": -1,
            "transactional_id_pattern": pattern,
        }
        answer = await world.ask(ApiKey.LIST_TRANSACTIONS, 2, **fields)
        assert (name in {found.transactional_id for found in answer.transaction_states}) is listed, pattern


# ---- DescribeTopicPartitions, as a Kafka 4.1.1 answered the same requests ----

# What is asked: topics (a, b, c of 3, 1 and 2 partitions), the limit, the cursor; the partitions of the page,
# the next cursor.
PAGES: dict[str, tuple[str, int, tuple[str, int] | None, dict[str, list[int]], tuple[str, int] | None]] = {
    "all": ("cab", 2000, None, {"a": [0, 1, 2], "b": [0], "c": [0, 1]}, None),
    "twice": ("aa", 2000, None, {"a": [0, 1, 2]}, None),
    "no limit is one": ("abc", -1, None, {"a": [0]}, ("a", 1)),
    "within a topic": ("abc", 2, None, {"a": [0, 1]}, ("a", 2)),
    "at the end of a topic": ("abc", 3, None, {"a": [0, 1, 2]}, ("b", 0)),
    "at the end of the last": ("abc", 6, None, {"a": [0, 1, 2], "b": [0], "c": [0, 1]}, None),
    "from a cursor": ("abc", 3, ("a", 1), {"a": [1, 2], "b": [0]}, ("c", 0)),
    "a cursor at the end": ("abc", 2, ("a", 3), {"a": [], "b": [0], "c": [0]}, ("c", 1)),
}


@pytest.mark.parametrize(("names", "limit", "cursor", "page", "following"), PAGES.values(), ids=PAGES)
async def test_topics_are_described_page_by_page(
    world: World,
    names: str,
    limit: int,
    cursor: tuple[str, int] | None,
    page: dict[str, list[int]],
    following: Any,
) -> None:
    prefix = fresh("page")
    for name, partitions in (("a", 3), ("b", 1), ("c", 2)):
        topic = {
            "name": prefix + name,
            "num_partitions": partitions,
            "replication_factor": 1,
            "assignments": [],
            "configs": [],
        }
        await world.ask(ApiKey.CREATE_TOPICS, 7, topics=[topic], timeout=10_000, validate_only=False)
    answer = await describe(
        world, [prefix + name for name in names], limit, cursor and (prefix + cursor[0], cursor[1])
    )
    found = {
        topic.name.removeprefix(prefix): [p.partition_index for p in topic.partitions]
        for topic in answer.topics
    }
    assert found == page
    after = answer.next_cursor
    assert (after and (after.topic_name.removeprefix(prefix), after.partition_index)) == following


async def describe(world: World, names: list[str], limit: int, cursor: tuple[str, int] | None) -> Any:
    at = cursor and {"topic_name": cursor[0], "partition_index": cursor[1]}
    topics = [{"name": name} for name in names]
    return await world.ask(
        ApiKey.DESCRIBE_TOPIC_PARTITIONS, 0, topics=topics, response_partition_limit=limit, cursor=at
    )


@pytest.mark.parametrize("cursor", [("t", -1), ("tt", 0), ("", 0)])
async def test_a_cursor_that_points_nowhere_is_refused_for_every_topic(
    world: World, cursor: tuple[str, int]
) -> None:
    answer = await describe(world, ["t", "s"], 10, cursor)
    assert [(topic.name, topic.error_code) for topic in answer.topics] == [
        ("t", ErrorCode.INVALID_REQUEST), ("s", ErrorCode.INVALID_REQUEST)
    ]  # fmt: skip


async def test_topics_that_are_not_there_are_named_in_the_description(world: World) -> None:
    answer = await describe(world, ["no/topic", "nothing", world.topic], 10, None)
    codes = {topic.name: topic.error_code for topic in answer.topics}
    assert codes.pop(world.topic) == ErrorCode.NONE
    assert codes == {
        "no/topic": ErrorCode.INVALID_TOPIC_EXCEPTION,
        "nothing": ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    }


async def test_all_topics_are_described_when_none_is_named(world: World) -> None:
    answer = await describe(world, [], 2000, ("", 0))
    names = [topic.name for topic in answer.topics]
    assert world.topic in names
    assert names == sorted(names)
