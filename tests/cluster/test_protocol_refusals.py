"""What is asked wrongly is answered with Kafka's error code, a message that says why, and nothing done."""

from __future__ import annotations

import struct
import time
from collections.abc import Mapping
from typing import Any
from urllib.request import urlopen
from uuid import uuid4

import pytest
from tidegate.processes.local_cluster import LocalCluster
from tidegate.wire.api import ApiKey
from tidegate.wire.errors import ErrorCode
from tidegate.wire.records import NewRecord, encode_batch

from .consumer_group_cases import heartbeat, new_consumer_group
from .protocol_cases import (
    World,
    end,
    found,
    fresh,
    group_with_offset,
    new_group,
    new_topic,
    new_transaction,
    produce,
    records,
)

pytestmark = [pytest.mark.cluster, pytest.mark.xdist_group("conformance"), pytest.mark.timeout(120)]

TOPIC, BROKER = 2, 4


def topic_of(name: str, configs: Mapping[str, str | None] | None = None, **fields: Any) -> dict[str, Any]:
    entries = [{"name": key, "value": value} for key, value in (configs or {}).items()]
    return {
        "name": name,
        "num_partitions": 1,
        "replication_factor": 1,
        "assignments": [],
        "configs": entries,
    } | fields


async def create(
    world: World, *topics: dict[str, Any], version: int = 7, validate_only: bool = False
) -> list[Any]:
    answer = await world.ask(
        ApiKey.CREATE_TOPICS, version, topics=topics, timeout=10_000, validate_only=validate_only
    )
    return list(answer.topics)


async def config_of(world: World, name: str, *keys: str, **asked: bool) -> dict[str, Any]:
    fields = {"include_synonyms": False, "include_documentation": False} | asked
    resource = {"resource_type": TOPIC, "resource_name": name, "configuration_keys": list(keys) or None}
    answer = await world.ask(ApiKey.DESCRIBE_CONFIGS, 4, resources=[resource], **fields)
    return {entry.name: entry for entry in answer.results[0].configs}


def says(answer: Any, code: ErrorCode, words: str) -> None:
    assert answer.error_code == code, answer
    message = answer.error_message or ""
    assert words in message, message
    assert not message.startswith(code.name), message


# ---- ApiVersions -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", [3, 4])
async def test_a_feature_with_minimum_level_0_is_hidden_from_old_clients(world: World, version: int) -> None:
    """KAFKA-17011: Java clients before 3.9 fail to connect when one is listed."""
    answer = await world.ask(
        ApiKey.API_VERSIONS, version, client_software_name="java", client_software_version="3.6.2"
    )
    supported = {feature.name: feature.min_version for feature in answer.supported_features}
    optional = {"transaction.version": 0, "group.version": 0} if version >= 4 else {}
    assert supported == {"tidegate.metadata.version": 1} | optional
    assert {feature.name: feature.max_version_level for feature in answer.finalized_features}[
        "transaction.version"
    ] == 2


@pytest.mark.parametrize(
    ("name", "software_version"), [("", "1"), ("-x", "1"), ("x y", "1"), ("x", ""), ("x", "1_0")]
)
async def test_a_client_software_that_is_no_name_is_refused(
    world: World, name: str, software_version: str
) -> None:
    answer = await world.ask(
        ApiKey.API_VERSIONS, 3, client_software_name=name, client_software_version=software_version
    )
    assert answer.error_code == ErrorCode.INVALID_REQUEST
    assert not answer.api_keys


# ---- topics ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fields", "code", "words"),
    [
        ({"configs": [{"name": "segment.ms", "value": None}]}, ErrorCode.INVALID_CONFIG,
            "no value is given for segment.ms"),
        ({"configs": [{"name": "segment.mss", "value": "1"}]}, ErrorCode.INVALID_CONFIG,
            "did you mean 'segment.ms'"),
        ({"num_partitions": 0}, ErrorCode.INVALID_PARTITIONS, "0 partitions"),
        ({"replication_factor": 2}, ErrorCode.INVALID_REPLICATION_FACTOR, "only 1 broker(s) are registered"),
        ({"name": "bad name"}, ErrorCode.INVALID_TOPIC_EXCEPTION, "ASCII"),
        ({"name": "__consumer_offsets"}, ErrorCode.INVALID_TOPIC_EXCEPTION, "brokers"),
        ({"name": "world"}, ErrorCode.TOPIC_ALREADY_EXISTS, "already exists"),
        ({"num_partitions": -1, "replication_factor": -1,
            "assignments": [{"partition_index": 1, "broker_ids": [1]}]},
         ErrorCode.INVALID_REPLICA_ASSIGNMENT, "without a gap"),
    ],
)  # fmt: skip
async def test_a_topic_that_cannot_be_is_not_created(
    world: World, fields: dict[str, Any], code: ErrorCode, words: str
) -> None:
    name = fresh("refused")
    (answer,) = await create(world, topic_of(name) | fields)
    says(answer, code, words)
    # null trips clients of version 5
    assert answer.num_partitions == -1
    assert answer.topic_id is None
    assert answer.configs == ()
    metadata = await world.ask(ApiKey.METADATA, 9, topics=[{"name": name}], allow_auto_topic_creation=False)
    assert metadata.topics[0].error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


async def test_a_topic_twice_in_a_request_and_a_colliding_name_are_refused(world: World) -> None:
    name = fresh("twice")
    (answer,) = await create(world, topic_of(name), topic_of(name))
    says(answer, ErrorCode.INVALID_REQUEST, "more than once")
    (made,) = await create(world, topic_of(f"{name}.x"))
    assert made.error_code == 0
    (answer,) = await create(world, topic_of(f"{name}_x"))
    says(answer, ErrorCode.INVALID_TOPIC_EXCEPTION, f"{name}.x")


async def test_validation_answers_what_a_creation_would(world: World) -> None:
    name = fresh("validated")
    (answer,) = await create(
        world, topic_of(name, {"segment.ms": "7000"}, num_partitions=-1), validate_only=True
    )
    assert (answer.error_code, answer.num_partitions, answer.replication_factor, answer.topic_id) == (
        0,
        1,
        1,
        None,
    )
    (entry,) = [entry for entry in answer.configs if entry.name == "segment.ms"]
    assert (entry.value, entry.config_source) == ("7000", 1)
    metadata = await world.ask(ApiKey.METADATA, 9, topics=[{"name": name}], allow_auto_topic_creation=False)
    assert metadata.topics[0].error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


async def test_a_topic_is_enlarged_once_in_a_request(world: World) -> None:
    one, other = await new_topic(world), await new_topic(world)
    topics = [{"name": n, "count": c, "assignments": None} for n, c in ((one, 2), (other, 2), (one, 3))]
    answer = await world.ask(ApiKey.CREATE_PARTITIONS, 3, topics=topics, timeout=10_000, validate_only=False)
    assert [(result.name, result.error_code) for result in answer.results] == [
        (one, ErrorCode.INVALID_REQUEST),
        (other, 0),
    ]
    metadata = await world.ask(ApiKey.METADATA, 9, topics=[{"name": one}, {"name": other}])
    assert [len(topic.partitions) for topic in metadata.topics] == [1, 2]


async def test_deletion_answers_in_the_requests_order_with_its_topic_ids(world: World) -> None:
    names = [await new_topic(world) for _ in range(3)]
    metadata = await world.ask(
        ApiKey.METADATA, 12, topics=[{"name": name, "topic_id": None} for name in names]
    )
    ids = [topic.topic_id for topic in metadata.topics]
    unknown = uuid4()
    asked = [
        (None, unknown), (names[0], None), ("nope", None), (None, ids[1]), (names[2], ids[2]), (None, None),
        (names[2], None),
        (None, ids[2]),
    ]  # fmt: skip
    topics = [{"name": name, "topic_id": topic_id} for name, topic_id in asked]
    answer = await world.ask(ApiKey.DELETE_TOPICS, 6, topics=topics, timeout=10_000)
    bad = ErrorCode.INVALID_REQUEST
    assert [(r.name, r.topic_id, r.error_code) for r in answer.responses] == [
        (None, unknown, ErrorCode.UNKNOWN_TOPIC_ID), (names[0], ids[0], 0),
        ("nope", None, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        (names[1], ids[1], 0), (names[2], ids[2], bad), (None, None, bad), (names[2], None, bad),
        (None, ids[2], bad),
    ]  # fmt: skip
    metadata = await world.ask(
        ApiKey.METADATA, 9, topics=[{"name": name} for name in names], allow_auto_topic_creation=False
    )
    gone = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert [topic.error_code for topic in metadata.topics] == [gone, gone, 0]


@pytest.mark.parametrize(
    ("version", "name", "with_id", "code"),
    [
        (12, None, True, ErrorCode.UNKNOWN_TOPIC_ID),
        (12, None, False, ErrorCode.INVALID_REQUEST),
        (11, "", True, ErrorCode.INVALID_REQUEST),
        (11, None, False, ErrorCode.INVALID_REQUEST),
        (12, "nope", False, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        (12, "bad name", False, ErrorCode.INVALID_TOPIC_EXCEPTION),
        (4, "bad name", False, ErrorCode.INVALID_TOPIC_EXCEPTION),
        (4, "..", False, ErrorCode.INVALID_TOPIC_EXCEPTION),
    ],
)
async def test_a_topic_that_is_not_known_keeps_the_name_or_id_it_was_asked_by(
    world: World, version: int, name: str | None, with_id: bool, code: ErrorCode
) -> None:
    topic_id = uuid4() if with_id else None
    topics = [{"name": name, "topic_id": topic_id}]
    answer = await world.ask(ApiKey.METADATA, version, topics=topics, allow_auto_topic_creation=False)
    (topic,) = answer.topics
    assert topic.error_code == code
    assert topic.partitions == ()
    assert topic.name == (name if version >= 12 else name or "")
    assert getattr(topic, "topic_id", None) == topic_id


# ---- settings ----------------------------------------------------------------------------------------------


async def alter(
    world: World, name: str, *changes: tuple[str, int, str | None], kind: int = TOPIC, times: int = 1
) -> list[Any]:
    configs = [
        {"name": key, "config_operation": operation, "value": value} for key, operation, value in changes
    ]
    resources = [{"resource_type": kind, "resource_name": name, "configs": configs}] * times
    answer = await world.ask(ApiKey.INCREMENTAL_ALTER_CONFIGS, 1, resources=resources, validate_only=False)
    return list(answer.responses)


SET, DELETE, APPEND, SUBTRACT = range(4)


@pytest.mark.parametrize(
    ("changes", "code", "words"),
    [
        ([("segment.ms", SET, None)], ErrorCode.INVALID_REQUEST, "no value is given for segment.ms"),
        ([("cleanup.policy", APPEND, None)], ErrorCode.INVALID_REQUEST, "no value is given"),
        ([("segment.ms", SET, "1"), ("segment.ms", SET, "2")], ErrorCode.INVALID_REQUEST, "more than once"),
        (
            [("segment.ms", SET, "1"), ("segment.ms", DELETE, None)],
            ErrorCode.INVALID_REQUEST,
            "more than once",
        ),
        ([("segment.ms", 9, "1")], ErrorCode.INVALID_REQUEST, "unknown operation 9"),
        ([("segment.ms", APPEND, "1")], ErrorCode.INVALID_CONFIG, "no list"),
        ([("segment.mss", SET, "1")], ErrorCode.INVALID_CONFIG, "did you mean"),
        ([("cleanup.policy", APPEND, "shred")], ErrorCode.INVALID_CONFIG, "shred"),
    ],
)
async def test_a_change_of_settings_that_cannot_be_changes_nothing(
    world: World, changes: list[tuple[str, int, str | None]], code: ErrorCode, words: str
) -> None:
    name = await new_topic(world)
    (answer,) = await alter(world, name, ("segment.bytes", SET, "1048576"), *changes)
    says(answer, code, words)
    assert (await config_of(world, name, "segment.bytes"))["segment.bytes"].config_source == 5


async def test_lists_are_appended_to_and_taken_from(world: World) -> None:
    name = await new_topic(world)
    for operation, value, outcome in ((APPEND, "compact", "delete,compact"), (SUBTRACT, "delete", "compact")):
        (answer,) = await alter(world, name, ("cleanup.policy", operation, value))
        assert answer.error_code == 0
        assert (await config_of(world, name, "cleanup.policy"))["cleanup.policy"].value == outcome


async def test_the_last_cleanup_policy_may_be_taken_away(world: World) -> None:
    """As in Kafka 4.1: nothing of the topic is deleted or compacted then."""
    name = await new_topic(world)
    (answer,) = await alter(world, name, ("cleanup.policy", SUBTRACT, "delete"))
    assert answer.error_code == ErrorCode.NONE
    assert (await config_of(world, name, "cleanup.policy"))["cleanup.policy"].value == ""


async def test_a_resource_that_cannot_be_changed_is_refused(world: World) -> None:
    says(
        (await alter(world, "1", ("segment.ms", SET, "1"), kind=BROKER))[0],
        ErrorCode.INVALID_REQUEST,
        "Set(segment.ms)",
    )
    says(
        (await alter(world, "nope", ("segment.ms", SET, "1")))[0],
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        "does not exist",
    )
    for answer in await alter(world, "world", ("segment.ms", SET, "1"), times=2):
        says(answer, ErrorCode.INVALID_REQUEST, "more than once")


async def test_alter_configs_replaces_all_and_wants_values(world: World) -> None:
    name = await new_topic(world)
    await alter(world, name, ("segment.bytes", SET, "1048576"))

    async def replace(configs: list[dict[str, Any]]) -> Any:
        resources = [{"resource_type": TOPIC, "resource_name": name, "configs": configs}]
        return (await world.ask(ApiKey.ALTER_CONFIGS, 2, resources=resources, validate_only=False)).responses[
            0
        ]

    says(await replace([{"name": "segment.ms", "value": None}]), ErrorCode.INVALID_REQUEST, "segment.ms")
    assert (await replace([{"name": "segment.ms", "value": "9000"}])).error_code == 0
    config = await config_of(world, name)
    assert {key for key, entry in config.items() if entry.config_source == 1} == {"segment.ms"}


@pytest.mark.parametrize(
    "change",
    [("flush.policy", SET, "os"), ("cleanup.policy", DELETE, None), ("min.insync.replicas", SET, "0")],
)
async def test_a_state_topic_stays_as_safe_as_it_is(
    world: World, change: tuple[str, int, str | None]
) -> None:
    await found(world, 0, fresh("group"))
    before = {key: entry.value for key, entry in (await config_of(world, "__consumer_offsets")).items()}
    (answer,) = await alter(world, "__consumer_offsets", change)
    assert answer.error_code in (ErrorCode.POLICY_VIOLATION, ErrorCode.INVALID_CONFIG)
    resources = [{"resource_type": TOPIC, "resource_name": "__consumer_offsets", "configs": []}]
    (answer,) = (await world.ask(ApiKey.ALTER_CONFIGS, 2, resources=resources, validate_only=False)).responses
    says(answer, ErrorCode.POLICY_VIOLATION, "cannot be changed")
    assert {
        key: entry.value for key, entry in (await config_of(world, "__consumer_offsets")).items()
    } == before


async def test_a_state_topic_is_neither_deleted_nor_enlarged_nor_cut(world: World) -> None:
    await found(world, 0, fresh("group"))
    name = "__consumer_offsets"
    deleted = await world.ask(
        ApiKey.DELETE_TOPICS, 6, topics=[{"name": name, "topic_id": None}], timeout=1000
    )
    says(deleted.responses[0], ErrorCode.INVALID_TOPIC_EXCEPTION, "cannot be deleted")
    topics = [{"name": name, "count": 500, "assignments": None}]
    enlarged = await world.ask(ApiKey.CREATE_PARTITIONS, 3, topics=topics, timeout=1000, validate_only=False)
    says(enlarged.results[0], ErrorCode.INVALID_TOPIC_EXCEPTION, "never changes")
    topics = [{"name": name, "partitions": [{"partition_index": 0, "offset": -1}]}]
    cut = await world.ask(ApiKey.DELETE_RECORDS, 2, topics=topics, timeout=1000)
    assert cut.topics[0].partitions[0].error_code == ErrorCode.INVALID_TOPIC_EXCEPTION


async def test_synonyms_and_documentation_come_only_when_asked_for(world: World) -> None:
    plain = (await config_of(world, "world", "min.insync.replicas"))["min.insync.replicas"]
    assert (plain.synonyms, plain.documentation) == ((), None)
    full = await config_of(
        world, "world", "min.insync.replicas", include_synonyms=True, include_documentation=True
    )
    entry = full["min.insync.replicas"]
    assert [(s.value, s.source) for s in entry.synonyms] == [
        ("1", 3),
        ("1", 4),
        ("1", 5),
    ]
    assert "in-sync" in entry.documentation


@pytest.mark.parametrize(
    ("kind", "name", "code"),
    [
        (TOPIC, "nope", ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        (TOPIC, "bad name", ErrorCode.INVALID_TOPIC_EXCEPTION),
        (BROKER, "2", ErrorCode.INVALID_REQUEST),
        (BROKER, "x", ErrorCode.INVALID_REQUEST),
        (99, "x", ErrorCode.INVALID_REQUEST),
    ],
)
async def test_settings_of_what_there_is_not(world: World, kind: int, name: str, code: ErrorCode) -> None:
    resource = {"resource_type": kind, "resource_name": name, "configuration_keys": None}
    answer = await world.ask(ApiKey.DESCRIBE_CONFIGS, 4, resources=[resource])
    assert answer.results[0].error_code == code
    assert answer.results[0].configs == ()


async def test_the_brokers_have_one_setting_in_common_at_first(world: World) -> None:
    """As in Kafka 4.1: with eligible leader replicas the controller keeps it for all (KIP-966)."""
    resource = {"resource_type": BROKER, "resource_name": "", "configuration_keys": None}
    answer = await world.ask(ApiKey.DESCRIBE_CONFIGS, 4, resources=[resource])
    assert answer.results[0].error_code == ErrorCode.NONE
    (entry,) = answer.results[0].configs
    assert (entry.name, entry.value, entry.config_source) == ("min.insync.replicas", "1", 3)


# ---- records, groups, transactions -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("data", "version", "code"),
    [
        (records() * 2, 9, ErrorCode.INVALID_RECORD),
        (b"", 9, ErrorCode.INVALID_RECORD),
        (records(compression=4), 6, ErrorCode.UNSUPPORTED_COMPRESSION_TYPE),
        (
            records(transactional=True, producer_id=1, producer_epoch=0, base_sequence=0),
            9,
            ErrorCode.INVALID_REQUEST,
        ),
        (records(control=True), 9, ErrorCode.INVALID_RECORD),
    ],
)
async def test_records_that_no_client_sends_are_refused(
    world: World, data: bytes, version: int, code: ErrorCode
) -> None:
    topic = await new_topic(world)
    answer = await produce(world, topic, data, version=version)
    (part,) = answer.responses[0].partition_responses
    assert (part.error_code, part.base_offset) == (code, -1)
    if version >= 8:
        assert part.error_message
        assert not part.error_message.startswith(code.name)
    answer = await produce(world, topic, records())
    assert answer.responses[0].partition_responses[0].base_offset == 0, "nothing was appended"


async def test_a_partition_twice_in_a_produce_request_is_refused_both_times(world: World) -> None:
    topic = await new_topic(world)
    parts = [{"index": 0, "records": records()}] * 2
    data = [{"name": topic, "partition_data": parts}]
    answer = await world.ask(ApiKey.PRODUCE, 9, transactional_id=None, acks=-1, timeout=1000, topic_data=data)
    assert [part.error_code for part in answer.responses[0].partition_responses] == [
        ErrorCode.INVALID_RECORD
    ] * 2


@pytest.mark.parametrize(("producer_id", "producer_epoch"), [(5, -1), (-1, 3)])
@pytest.mark.parametrize("transactional", [True, False])
async def test_a_producer_id_without_its_epoch_is_refused(
    world: World, producer_id: int, producer_epoch: int, transactional: bool
) -> None:
    name = fresh("transaction") if transactional else None
    fields = {"producer_id": producer_id, "producer_epoch": producer_epoch, "transaction_timeout": 1000}
    answer = await world.ask(ApiKey.INIT_PRODUCER_ID, 4, transactional_id=name, **fields)
    assert answer.error_code == ErrorCode.INVALID_REQUEST
    assert answer.producer_id == -1


@pytest.mark.parametrize(
    ("offset", "code", "low"),
    [(3, ErrorCode.NONE, 3), (-1, ErrorCode.NONE, 4), (9, ErrorCode.OFFSET_OUT_OF_RANGE, -1)],
)
async def test_records_are_deleted_up_to_an_offset_that_there_is(
    world: World, offset: int, code: ErrorCode, low: int
) -> None:
    topic = await new_topic(world)
    await produce(world, topic, records(4))
    parts = [{"partition_index": 0, "offset": offset}, {"partition_index": 8, "offset": 0}]
    answer = await world.ask(
        ApiKey.DELETE_RECORDS, 2, topics=[{"name": topic, "partitions": parts}], timeout=10_000
    )
    found = [(part.error_code, part.low_watermark) for part in answer.topics[0].partitions]
    assert found == [(code, low), (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, -1)]


@pytest.mark.parametrize(
    ("version", "times", "fields", "code"),
    [
        (6, 1, {"timestamp": -3}, ErrorCode.UNSUPPORTED_VERSION),
        (7, 1, {"timestamp": -3}, ErrorCode.NONE),
        (7, 1, {"timestamp": -9}, ErrorCode.UNSUPPORTED_VERSION),
        (7, 2, {"timestamp": -1}, ErrorCode.INVALID_REQUEST),
        (7, 1, {"timestamp": -1, "current_leader_epoch": 9}, ErrorCode.UNKNOWN_LEADER_EPOCH),
        (7, 1, {"timestamp": -1, "partition_index": 9}, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
    ],
)
async def test_offsets_are_listed_for_what_the_version_knows(
    world: World, version: int, times: int, fields: dict[str, int], code: ErrorCode
) -> None:
    topics = [
        {
            "name": world.topic,
            "partitions": [{"partition_index": 0, "current_leader_epoch": -1} | fields] * times,
        }
    ]
    answer = await world.ask(ApiKey.LIST_OFFSETS, version, replica_id=-1, isolation_level=0, topics=topics)
    assert [part.error_code for part in answer.topics[0].partitions] == [code] * times
    if code is not ErrorCode.NONE:
        assert {(part.offset, part.timestamp) for part in answer.topics[0].partitions} == {(-1, -1)}


async def test_states_of_groups_are_asked_for_in_any_case(world: World) -> None:
    group = await group_with_offset(world)
    for states, there in (
        (["empty"], True),
        (["EMPTY", "Stable"], True),
        (["Stable"], False),
        (["Nonsense"], False),
    ):
        answer = await world.ask(ApiKey.LIST_GROUPS, 4, states_filter=states)
        assert (group in {listed.group_id for listed in answer.groups}) is there


async def test_an_empty_group_id_and_a_missing_protocol_are_refused(world: World) -> None:
    _, ids = await new_transaction(world, partition=False)
    topics = [
        {
            "name": world.topic,
            "partitions": [{"partition_index": 0, "committed_offset": 1, "committed_metadata": None}],
        }
    ]
    answer = await world.ask(
        ApiKey.TXN_OFFSET_COMMIT, 3, **ids, group_id="", generation_id=-1, member_id="", topics=topics
    )
    assert answer.topics[0].partitions[0].error_code == ErrorCode.INVALID_GROUP_ID
    answer = await world.ask(ApiKey.OFFSET_DELETE, 0, group_id="", topics=[])
    assert answer.error_code == ErrorCode.INVALID_GROUP_ID
    group, member = await new_group(world)
    fields = {"group_id": group, "generation_id": 1, "member_id": member, "assignments": []}
    answer = await world.ask(ApiKey.SYNC_GROUP, 5, **fields, protocol_type="consumer", protocol_name=None)
    assert answer.error_code == ErrorCode.INCONSISTENT_GROUP_PROTOCOL


async def test_a_member_of_a_consumer_group_names_itself_since_version_1(world: World) -> None:
    """KIP-1082; before, the coordinator made the id."""
    name = await new_consumer_group(world)
    refused = await world.ask(ApiKey.CONSUMER_GROUP_HEARTBEAT, 1, **heartbeat(world, name, "", 0))
    says(refused, ErrorCode.INVALID_REQUEST, "MemberId can't be empty.")
    joined = await world.ask(ApiKey.CONSUMER_GROUP_HEARTBEAT, 0, **heartbeat(world, name, "", 0))
    # Its epoch is that of the last assignment: a member that joins soon after another waits for the next one
    # (KIP-1263).
    assert joined.error_code == ErrorCode.NONE
    assert joined.member_id
    assert joined.member_epoch in (1, 2)


async def test_what_is_said_of_groups_that_are_not_there_is_kafkas(world: World) -> None:
    """Recorded from Kafka 4.1.1 by `python -m bench.answers --only groups`, which compares many more."""
    none, name = fresh("none"), await new_consumer_group(world)
    asked = {"include_authorized_operations": True}
    described = await world.ask(ApiKey.CONSUMER_GROUP_DESCRIBE, 1, group_ids=[none, ""], **asked)
    assert [(each.error_code, each.error_message) for each in described.groups] == [
        (ErrorCode.GROUP_ID_NOT_FOUND, f"Group {none} not found."), (ErrorCode.INVALID_GROUP_ID, None),
    ]  # fmt: skip
    (missing,) = (await world.ask(ApiKey.DESCRIBE_GROUPS, 6, groups=[none], **asked)).groups
    assert (missing.error_message, missing.authorized_operations) == (f"Group {none} not found.", -(2**31))
    deleted = await world.ask(ApiKey.DELETE_GROUPS, 2, groups_names=[none, "", none])
    assert [each.error_code for each in deleted.results] == [ErrorCode.GROUP_ID_NOT_FOUND] * 2, (
        "each of them once"
    )
    one = {
        "group_id": name,
        "member_id": "unknown",
        "member_epoch": 9,
        "topics": [{"name": "t", "partition_indexes": [0]}],
    }
    fetched = await world.ask(ApiKey.OFFSET_FETCH, 9, groups=[one], require_stable=False)
    assert [(each.error_code, each.topics) for each in fetched.groups] == [(ErrorCode.UNKNOWN_MEMBER_ID, ())]


@pytest.mark.parametrize(
    ("member", "epoch", "fields", "code", "message"),
    [
        ("m", 9, {"group_id": "none"}, ErrorCode.GROUP_ID_NOT_FOUND, "Consumer group none not found."),
        ("m", -1, {"group_id": "none"}, ErrorCode.GROUP_ID_NOT_FOUND, "Group none not found."),
        ("m", 9, {"group_id": "CLASSIC"}, ErrorCode.GROUP_ID_NOT_FOUND,
            "Group CLASSIC is not a consumer group."),
        ("m", 9, {}, ErrorCode.UNKNOWN_MEMBER_ID, "Member m is not a member of group GROUP."),
        (
            "member", 9, {}, ErrorCode.FENCED_MEMBER_EPOCH,
            "The consumer group member has a greater member epoch (9) than the one known by "
            "the group coordinator (1). "
            "The member must abandon all its partitions and rejoin.",
        ),
        ("m", 9, {"instance_id": "i"}, ErrorCode.UNKNOWN_MEMBER_ID, "Instance id i is unknown."),
        ("", 9, {}, ErrorCode.INVALID_REQUEST, "MemberId can't be empty."),
        ("m", 9, {"group_id": ""}, ErrorCode.INVALID_REQUEST, "GroupId can't be empty."),
        ("m", -3, {}, ErrorCode.INVALID_REQUEST, "MemberEpoch is invalid."),
        ("m", -2, {}, ErrorCode.INVALID_REQUEST, "InstanceId can't be null."),
        ("m", 0, {"rebalance_timeout": -1}, ErrorCode.INVALID_REQUEST,
            "RebalanceTimeoutMs must be provided in first request."),
        ("m", 0, {"topic_partitions": None}, ErrorCode.INVALID_REQUEST,
            "TopicPartitions must be empty when (re-)joining."),
        (
            "m", 0, {"subscribed_topic_names": None}, ErrorCode.INVALID_REQUEST,
            "Either SubscribedTopicNames or SubscribedTopicRegex must be non-null when (re-)joining.",
        ),
        (
            "m", 0, {"server_assignor": "sticky"}, ErrorCode.UNSUPPORTED_ASSIGNOR,
            "ServerAssignor sticky is not supported. Supported assignors: uniform, range.",
        ),
    ],
)  # fmt: skip
async def test_a_refused_consumer_group_heartbeat_has_kafkas_message(
    world: World, member: str, epoch: int, fields: dict[str, Any], code: ErrorCode, message: str
) -> None:
    group, classic = (
        await new_consumer_group(world),
        (await new_group(world))[0] if "CLASSIC" in message else "",
    )
    asked = {**heartbeat(world, group, member, epoch), **fields}
    if asked["group_id"] == "CLASSIC":
        asked["group_id"] = classic
    answer = await world.ask(ApiKey.CONSUMER_GROUP_HEARTBEAT, 1, **asked)
    text = answer.error_message.replace(group, "GROUP").replace(classic or group, "CLASSIC")
    assert (answer.error_code, text) == (code, message)


async def test_the_two_kinds_of_groups_are_kept_apart(world: World) -> None:
    name = await new_consumer_group(world)
    classic, _ = await new_group(world)
    refused = await world.ask(ApiKey.CONSUMER_GROUP_HEARTBEAT, 1, **heartbeat(world, classic, "m", 0))
    says(refused, ErrorCode.GROUP_ID_NOT_FOUND, "embedded consumer protocol is malformed")
    described = await world.ask(
        ApiKey.CONSUMER_GROUP_DESCRIBE, 0, group_ids=[classic, name], include_authorized_operations=False
    )
    assert described.groups[0].error_message == f"Group {classic} is not a consumer group."
    assert described.groups[1].group_state == "Stable"
    dead = await world.ask(ApiKey.DESCRIBE_GROUPS, 5, groups=[name], include_authorized_operations=False)
    assert dead.groups[0].group_state == "Dead"
    assert dead.groups[0].error_code.name == "none"
    missing = await world.ask(
        ApiKey.DESCRIBE_GROUPS, 6, groups=[name, "nowhere"], include_authorized_operations=False
    )
    says(missing.groups[0], ErrorCode.GROUP_ID_NOT_FOUND, "not a classic group")
    says(missing.groups[1], ErrorCode.GROUP_ID_NOT_FOUND, "Group nowhere not found")
    for types, listed in ((["consumer"], {name}), (["CLASSIC"], {classic}), ([], {name, classic})):
        answer = await world.ask(ApiKey.LIST_GROUPS, 5, states_filter=[], types_filter=types)
        assert {group.group_id for group in answer.groups} & {name, classic} == listed


async def test_an_re2_subscription_finds_its_topics_at_the_first_heartbeat(world: World) -> None:
    name = fresh("group")
    await found(world, 0, name)
    pattern = {
        "subscribed_topic_names": None,
        "subscribed_topic_regex": f"(?i){world.topic.upper()}[[:digit:]]*",
    }
    joined = await world.ask(ApiKey.CONSUMER_GROUP_HEARTBEAT, 1, **heartbeat(world, name, "m", 0, **pattern))
    assert [each.topic_id for each in joined.assignment.topic_partitions] == [world.topic_id]
    wrong = {"subscribed_topic_names": None, "subscribed_topic_regex": "(?=a)"}
    refused = await world.ask(ApiKey.CONSUMER_GROUP_HEARTBEAT, 1, **heartbeat(world, name, "n", 0, **wrong))
    says(refused, ErrorCode.INVALID_REGULAR_EXPRESSION, "`(?=a)` is not a valid regular expression")


async def test_a_member_gets_its_groups_own_heartbeat_interval(world: World) -> None:
    name = await new_consumer_group(world)
    config = {"name": "consumer.heartbeat.interval.ms", "config_operation": 0, "value": "7000"}
    resource = {"resource_type": 32, "resource_name": name, "configs": [config]}
    altered = await world.ask(ApiKey.INCREMENTAL_ALTER_CONFIGS, 1, resources=[resource], validate_only=False)
    assert altered.responses[0].error_code == 0, altered
    text = await world.ask(ApiKey.CONSUMER_GROUP_HEARTBEAT, 1, **heartbeat(world, name, "member", 1))
    assert text.heartbeat_interval.total_seconds() == 7


@pytest.mark.parametrize(
    ("epoch", "code"), [(1, "NONE"), (0, "STALE_MEMBER_EPOCH"), (7, "STALE_MEMBER_EPOCH")]
)
async def test_offsets_of_a_consumer_group_are_fenced_by_the_member_epoch(
    world: World, epoch: int, code: str
) -> None:
    name = await new_consumer_group(world)
    part = {
        "partition_index": 0,
        "committed_offset": 3,
        "committed_leader_epoch": 0,
        "committed_metadata": "",
    }
    topics = [{"name": world.topic, "partitions": [part]}]
    ids = {
        "group_id": name,
        "generation_id_or_member_epoch": epoch,
        "member_id": "member",
        "group_instance_id": None,
    }
    answer = await world.ask(ApiKey.OFFSET_COMMIT, 9, **ids, topics=topics)
    assert ErrorCode(answer.topics[0].partitions[0].error_code).name == code
    before = await world.ask(ApiKey.OFFSET_COMMIT, 8, **ids, topics=topics)
    expected = ErrorCode.UNSUPPORTED_VERSION if code == "NONE" else ErrorCode.STALE_MEMBER_EPOCH
    assert before.topics[0].partitions[0].error_code == expected
    group = {"group_id": name, "member_id": "member", "member_epoch": epoch, "topics": None}
    fetched = await world.ask(ApiKey.OFFSET_FETCH, 9, groups=[group], require_stable=True)
    assert ErrorCode(fetched.groups[0].error_code).name == code


@pytest.mark.parametrize(
    ("version", "code"), [(3, "INVALID_TXN_STATE"), (10, "INVALID_TXN_STATE"), (11, "TRANSACTION_ABORTABLE")]
)
async def test_a_batch_of_a_partition_not_enlisted_gets_the_clients_own_error(
    world: World, version: int, code: str
) -> None:
    """KIP-890: TRANSACTION_ABORTABLE came with Produce 11; before, its clients would not know what to do
    about it."""
    name, ids = await new_transaction(world, partition=False)
    identity = {
        "producer_id": ids["producer_id"],
        "producer_epoch": ids["producer_epoch"],
        "base_sequence": 0,
    }
    answer = await produce(world, world.topic, records(transactional=True, **identity), name, version)
    assert ErrorCode(answer.responses[0].partition_responses[0].error_code).name == code


@pytest.mark.parametrize(
    ("version", "code"), [(0, "INVALID_TXN_STATE"), (3, "INVALID_TXN_STATE"), (4, "TRANSACTION_ABORTABLE")]
)
async def test_offsets_of_a_group_not_enlisted_get_the_clients_own_error(
    world: World, version: int, code: str
) -> None:
    _, ids = await new_transaction(world, partition=False)
    group = fresh("group")
    await found(world, 0, group)
    part = {
        "partition_index": 0,
        "committed_offset": 2,
        "committed_leader_epoch": 0,
        "committed_metadata": None,
    }
    fields = ids | {"group_id": group, "topics": [{"name": world.topic, "partitions": [part]}]}
    answer = await world.ask(ApiKey.TXN_OFFSET_COMMIT, version, **fields)
    assert ErrorCode(answer.topics[0].partitions[0].error_code).name == code


@pytest.mark.parametrize("version", [0, 3, 5])
async def test_a_fenced_offset_commit_gets_the_error_that_its_client_expects(
    world: World, version: int
) -> None:
    """KIP-588 gave TxnOffsetCommit no version that knows PRODUCER_FENCED; Kafka answers
    INVALID_PRODUCER_EPOCH in all of them (AddPartitionsToTxnManager)."""
    name, ids = await new_transaction(world, partition=False)
    group = fresh("group")
    await found(world, 0, group)
    newer = await world.ask(ApiKey.INIT_PRODUCER_ID, 4, transactional_id=name, transaction_timeout=30_000)
    assert newer.error_code == ErrorCode.NONE
    part = {
        "partition_index": 0,
        "committed_offset": 2,
        "committed_leader_epoch": 0,
        "committed_metadata": None,
    }
    fields = ids | {"group_id": group, "topics": [{"name": world.topic, "partitions": [part]}]}
    answer = await world.ask(ApiKey.TXN_OFFSET_COMMIT, version, **fields)
    assert answer.topics[0].partitions[0].error_code == ErrorCode.INVALID_PRODUCER_EPOCH


async def test_of_a_refused_batch_the_records_at_fault_are_named(world: World) -> None:
    """KIP-467: a client fails those as invalid, and the others of the batch as what it may send again."""
    name = fresh("compacted")
    (made,) = await create(world, topic_of(name, {"cleanup.policy": "compact"}))
    assert made.error_code == ErrorCode.NONE
    batch = encode_batch([NewRecord(key, b"value") for key in (b"a", None, b"b", None)])
    for version, named in ((7, None), (8, [1, 3]), (12, [1, 3])):
        part = (await produce(world, name, batch, version=version)).responses[0].partition_responses[0]
        assert part.error_code == ErrorCode.INVALID_RECORD
        assert named is None or [error.batch_index for error in part.record_errors] == named
        assert named is None or "without a key" in part.error_message
    now_ms = int(time.time() * 1000)
    batch = encode_batch([NewRecord(b"k", b"value", (), now_ms + ahead) for ahead in (0, 86_400_000, 1)])
    part = (await produce(world, name, batch, version=9)).responses[0].partition_responses[0]
    assert part.error_code == ErrorCode.INVALID_TIMESTAMP
    assert [error.batch_index for error in part.record_errors] == [1]


async def test_a_transactional_id_that_is_not_known_is_an_error_of_its_own(world: World) -> None:
    known, _ = await new_transaction(world)
    answer = await world.ask(ApiKey.DESCRIBE_TRANSACTIONS, 0, transactional_ids=[known, fresh("nothing")])
    codes = [state.error_code for state in answer.transaction_states]
    assert codes == [ErrorCode.NONE, ErrorCode.TRANSACTIONAL_ID_NOT_FOUND]


async def test_offsets_of_a_group_that_is_not_known_are_not_deleted(world: World) -> None:
    await group_with_offset(world)
    topics = [{"name": world.topic, "partitions": [{"partition_index": 0}]}]
    answer = await world.ask(ApiKey.OFFSET_DELETE, 0, group_id=fresh("no-group"), topics=topics)
    assert answer.error_code == ErrorCode.GROUP_ID_NOT_FOUND
    assert answer.topics == ()


async def test_a_transaction_is_not_enlisted_by_halves(world: World) -> None:
    _, ids = await new_transaction(world, partition=False)
    topics = [{"name": world.topic, "partitions": [0]}, {"name": "nope", "partitions": [0]}]
    fields = {f"v3_and_below_{key}": value for key, value in ids.items()}
    answer = await world.ask(ApiKey.ADD_PARTITIONS_TO_TXN, 3, **fields, v3_and_below_topics=topics)
    codes = [t.results_by_partition[0].partition_error_code for t in answer.results_by_topic_v3_and_below]
    assert codes == [ErrorCode.OPERATION_NOT_ATTEMPTED, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION]


async def test_the_transaction_state_log_rejects_transactions_and_client_markers(world: World) -> None:
    """Its coordinator, which alone writes there, would stop at what it did not write."""
    _, ids = await new_transaction(world, partition=False)
    topics = [{"name": world.topic, "partitions": [1]}, {"name": "__transaction_state", "partitions": [0]}]
    fields = {f"v3_and_below_{key}": value for key, value in ids.items()}
    answer = await world.ask(ApiKey.ADD_PARTITIONS_TO_TXN, 3, **fields, v3_and_below_topics=topics)
    codes = [t.results_by_partition[0].partition_error_code for t in answer.results_by_topic_v3_and_below]
    assert codes == [ErrorCode.OPERATION_NOT_ATTEMPTED, ErrorCode.INVALID_TOPIC_EXCEPTION]
    marker = {
        "producer_id": ids["producer_id"], "producer_epoch": ids["producer_epoch"],
        "transaction_result": True,
        "topics": [{"name": "__transaction_state", "partition_indexes": [0]}], "coordinator_epoch": 0,
    }  # fmt: skip
    answer = await world.ask(ApiKey.WRITE_TXN_MARKERS, 1, markers=[marker])
    assert answer.markers[0].topics[0].partitions[0].error_code == ErrorCode.INVALID_TOPIC_EXCEPTION
    answer = await world.ask(ApiKey.ADD_PARTITIONS_TO_TXN, 3, **fields, v3_and_below_topics=topics[:1])
    codes = [t.results_by_partition[0].partition_error_code for t in answer.results_by_topic_v3_and_below]
    assert codes == [ErrorCode.NONE], "and the coordinator goes on"
    await end(world, ids)


# ---- the cluster -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("endpoint_type", "code"),
    [(2, ErrorCode.MISMATCHED_ENDPOINT_TYPE), (9, ErrorCode.UNSUPPORTED_ENDPOINT_TYPE)],
)
async def test_a_broker_is_no_endpoint_of_controllers(
    world: World, endpoint_type: int, code: ErrorCode
) -> None:
    fields = {"include_cluster_authorized_operations": False, "endpoint_type": endpoint_type}
    answer = await world.ask(ApiKey.DESCRIBE_CLUSTER, 1, **fields)
    says(answer, code, "endpoint")
    assert answer.brokers == ()


async def test_elections_that_cannot_be(world: World) -> None:
    async def elect(election_type: int, partitions: list[tuple[str, int]] | None) -> Any:
        topics = (
            None
            if partitions is None
            else [{"topic": name, "partitions": [index]} for name, index in partitions]
        )
        return await world.ask(
            ApiKey.ELECT_LEADERS, 2, election_type=election_type, topic_partitions=topics, timeout=10_000
        )

    assert (await elect(7, None)).error_code == ErrorCode.INVALID_REQUEST
    everything = await elect(0, None)
    assert (everything.error_code, everything.replica_election_results) == (0, ())
    answer = await elect(1, [("world", 1), ("nope", 0)])
    results = [result.partition_result[0] for result in answer.replica_election_results]
    says(results[0], ErrorCode.ELECTION_NOT_NEEDED, "node 1 leads")
    says(results[1], ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "No such topic as nope")


async def test_errors_are_counted_by_their_names(world: World, conformance_node: LocalCluster) -> None:
    await new_group(world)  # so that the coordinator is there
    before = _counted(conformance_node, "offset_delete", "group_id_not_found")
    await world.ask(ApiKey.OFFSET_DELETE, 0, group_id=fresh("no-group"), topics=[])
    assert _counted(conformance_node, "offset_delete", "group_id_not_found") == before + 1
    topic = await new_topic(world)
    before = _counted(conformance_node, "produce", "invalid_record")
    await produce(world, topic, records() + struct.pack(">q", 0))
    assert _counted(conformance_node, "produce", "invalid_record") == before + 1


def _counted(cluster: LocalCluster, request: str, outcome: str) -> float:
    with urlopen(f"http://{cluster.node(1).metrics_address}/metrics", timeout=10) as page:
        lines = page.read().decode().splitlines()
    wanted = f'tidegate_requests_total{{outcome="{outcome}",request="{request}"}} '
    return next((float(line.removeprefix(wanted)) for line in lines if line.startswith(wanted)), 0.0)
