"""For every request that a node announces: an ordinary one in a given version, and the whole answer that it
must get.

An answer is a pattern: a dictionary with every field of the answer in every version, so that no field is at
its default by oversight.  `ANY` stands for an unpredictable value, a function decides whether a value is
right.
"""

from __future__ import annotations

import itertools
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from tidegate.node.handlers import HANDLERS
from tidegate.storage.topic_config import TOPIC_CONFIGS
from tidegate.wire import api
from tidegate.wire.api import ApiKey
from tidegate.wire.records import NewRecord, encode_batch

from .conformance import Asker

ANY: Any = object()
UNASKED = -(2**31)
OK = {"throttle_time": 0, "error_code": 0}
CONSUMER = (b"\x00\x00" + b"\x00" * 8, "range")


@dataclass(slots=True)
class World:
    """A node with one topic of two partitions; the first holds five records of a plain producer."""

    asker: Asker
    host: str
    port: int
    topic: str
    topic_id: UUID
    folder: str

    async def ask(self, key: ApiKey, version: int, **fields: Any) -> Any:
        return await self.asker.ask(key, version, fields)


Case = Callable[[World, int], Awaitable[tuple[dict[str, Any], dict[str, Any]]]]
CASES: dict[ApiKey, Case] = {}
_numbers = itertools.count()


def fresh(what: str) -> str:
    return f"{what}-{next(_numbers)}"


def case(key: ApiKey) -> Callable[[Case], Case]:
    def register(function: Case) -> Case:
        CASES[key] = function
        return function

    return register


def records(count: int = 1, **identity: Any) -> bytes:
    return encode_batch(
        [NewRecord(None, b"value", (), 1_700_000_000_000 + n) for n in range(count)], **identity
    )


# ---- what cases need ---------------------------------------------------------------------------------------


async def new_topic(world: World, partitions: int = 1) -> str:
    return (await new_topic_with_id(world, partitions))[0]


async def new_topic_with_id(world: World, partitions: int = 1) -> tuple[str, UUID]:
    name = fresh("topic")
    topic = {
        "name": name,
        "num_partitions": partitions,
        "replication_factor": 1,
        "assignments": [],
        "configs": [],
    }
    answer = await world.ask(ApiKey.CREATE_TOPICS, 7, topics=[topic], timeout=10_000, validate_only=False)
    assert answer.topics[0].error_code == 0, answer
    return name, answer.topics[0].topic_id


async def produce(
    world: World, topic: str, data: bytes, transactional_id: str | None = None, version: int = 9
) -> Any:
    part = [{"name": topic, "partition_data": [{"index": 0, "records": data}]}]
    fields = {"transactional_id": transactional_id, "acks": -1, "timeout": 10_000, "topic_data": part}
    return await world.asker.ask(ApiKey.PRODUCE, version, fields)


async def found(world: World, key_type: int, key: str) -> None:
    """The coordinator of this key is there and has loaded its state."""
    for _ in range(600):
        answer = await world.ask(ApiKey.FIND_COORDINATOR, 4, key_type=key_type, coordinator_keys=[key])
        if answer.coordinators[0].error_code == 0:
            return
    raise AssertionError(answer)


async def new_transaction(world: World, *, partition: bool = True) -> tuple[str, dict[str, Any]]:
    """(transactional id, the fields that name it): open, with one partition, or not begun."""
    name = fresh("transaction")
    await found(world, 1, name)
    for _ in range(600):
        answer = await world.ask(
            ApiKey.INIT_PRODUCER_ID, 4, transactional_id=name, transaction_timeout=30_000
        )
        if answer.error_code == 0:
            break
    ids = {
        "transactional_id": name,
        "producer_id": answer.producer_id,
        "producer_epoch": answer.producer_epoch,
    }
    if partition:
        fields = {f"v3_and_below_{key}": value for key, value in ids.items()}
        topics = [{"name": world.topic, "partitions": [1]}]
        await world.ask(ApiKey.ADD_PARTITIONS_TO_TXN, 3, **fields, v3_and_below_topics=topics)
    return name, ids


async def end(world: World, ids: dict[str, Any]) -> None:
    await world.ask(ApiKey.END_TXN, 3, **ids, committed=False)


async def new_group(world: World, *, synced: bool = True) -> tuple[str, str]:
    """(group, its only member): in its first generation."""
    name = fresh("group")
    await found(world, 0, name)
    metadata, protocol = CONSUMER
    fields = {
        "group_id": name, "session_timeout": 30_000, "rebalance_timeout": 30_000, "member_id": "",
        "protocol_type": "consumer",
        "protocols": [{"name": protocol, "metadata": metadata}],
    }  # fmt: skip
    for _ in range(600):
        joined = await world.asker.ask(ApiKey.JOIN_GROUP, 3, fields)
        if joined.error_code == 0:
            break
    assert joined.generation_id == 1, joined
    if synced:
        mine = [{"member_id": joined.member_id, "assignment": b"mine"}]
        await world.ask(
            ApiKey.SYNC_GROUP, 2, group_id=name, generation_id=1, member_id=joined.member_id, assignments=mine
        )
    return name, joined.member_id


async def group_with_offset(world: World) -> str:
    name = fresh("group")
    await found(world, 0, name)
    for _ in range(600):
        part = {
            "partition_index": 0,
            "committed_offset": 3,
            "committed_leader_epoch": 0,
            "committed_metadata": "note",
        }
        topics = [{"name": world.topic, "partitions": [part]}]
        fields = {"group_id": name, "generation_id_or_member_epoch": -1, "member_id": "", "topics": topics}
        answer = await world.asker.ask(ApiKey.OFFSET_COMMIT, 7, fields)
        if answer.topics[0].partitions[0].error_code == 0:
            return name
    raise AssertionError(answer)


# ---- records -----------------------------------------------------------------------------------------------


@case(ApiKey.PRODUCE)
async def _produce(world: World, version: int) -> Any:
    topic, topic_id = await new_topic_with_id(world)
    part = [{"name": topic, "topic_id": topic_id, "partition_data": [{"index": 0, "records": records(2)}]}]
    answer: dict[str, Any] = {
        "index": 0, "error_code": 0, "base_offset": 0, "log_append_time": None, "log_start_offset": 0,
        "record_errors": [],
        "error_message": None, "current_leader": {"leader_id": -1, "leader_epoch": -1},
    }  # fmt: skip
    fields = {"transactional_id": None, "acks": -1, "timeout": 10_000, "topic_data": part}
    responses = [{"name": topic, "topic_id": topic_id, "partition_responses": [answer]}]
    return fields, {"responses": responses, "throttle_time": 0, "node_endpoints": []}


@case(ApiKey.LIST_OFFSETS)
async def _list_offsets(world: World, version: int) -> Any:
    part = {"partition_index": 0, "current_leader_epoch": -1, "timestamp": 1_700_000_000_002}
    answer = {
        "partition_index": 0,
        "error_code": 0,
        "timestamp": 1_700_000_000_002,
        "offset": 2,
        "leader_epoch": 0,
    }
    fields = {"replica_id": -1, "isolation_level": 1, "topics": [{"name": world.topic, "partitions": [part]}]}
    return fields, {"throttle_time": 0, "topics": [{"name": world.topic, "partitions": [answer]}]}


@case(ApiKey.OFFSET_FOR_LEADER_EPOCH)
async def _offset_for_leader_epoch(world: World, version: int) -> Any:
    part = {"partition": 0, "current_leader_epoch": 0, "leader_epoch": 0}
    answer = {"error_code": 0, "partition": 0, "leader_epoch": 0, "end_offset": 5}
    fields = {"replica_id": -1, "topics": [{"topic": world.topic, "partitions": [part]}]}
    return fields, {"throttle_time": 0, "topics": [{"topic": world.topic, "partitions": [answer]}]}


@case(ApiKey.DELETE_RECORDS)
async def _delete_records(world: World, version: int) -> Any:
    topic = await new_topic(world)
    await produce(world, topic, records(4))
    part = {"partition_index": 0, "offset": 3}
    answer = {"partition_index": 0, "low_watermark": 3, "error_code": 0}
    fields = {"topics": [{"name": topic, "partitions": [part]}], "timeout": 10_000}
    return fields, {"throttle_time": 0, "topics": [{"name": topic, "partitions": [answer]}]}


@case(ApiKey.DESCRIBE_PRODUCERS)
async def _describe_producers(world: World, version: int) -> Any:
    topic = await new_topic(world)
    identity = await world.ask(ApiKey.INIT_PRODUCER_ID, 4, transactional_id=None, transaction_timeout=1000)
    await produce(
        world, topic, records(2, producer_id=identity.producer_id, producer_epoch=0, base_sequence=0)
    )
    producer = {
        "producer_id": identity.producer_id, "producer_epoch": 0, "last_sequence": 1,
        "last_timestamp": lambda at: at > 0,
        "coordinator_epoch": -1, "current_txn_start_offset": -1,
    }  # fmt: skip
    answer = {"partition_index": 0, "error_code": 0, "error_message": None, "active_producers": [producer]}
    fields = {"topics": [{"name": topic, "partition_indexes": [0]}]}
    return fields, {"throttle_time": 0, "topics": [{"name": topic, "partitions": [answer]}]}


@case(ApiKey.DESCRIBE_LOG_DIRS)
async def _describe_log_dirs(world: World, version: int) -> Any:
    answer = {
        "partition_index": 0,
        "partition_size": lambda size: size > 60,
        "offset_lag": 0,
        "is_future_key": False,
    }
    result = {
        "error_code": 0, "log_dir": world.folder, "topics": [{"name": world.topic, "partitions": [answer]}],
        "total_bytes": lambda total: total > 1 << 20, "usable_bytes": lambda usable: usable >= 0,
    }  # fmt: skip
    return {"topics": [{"topic": world.topic, "partitions": [0, 7]}]}, OK | {"results": [result]}


# ---- the cluster -------------------------------------------------------------------------------------------


@case(ApiKey.METADATA)
async def _metadata(world: World, version: int) -> Any:
    partition = {
        "error_code": 0, "partition_index": ANY, "leader_id": 1, "leader_epoch": 0, "replica_nodes": [1],
        "isr_nodes": [1],
        "offline_replicas": [],
    }  # fmt: skip
    topic = {
        "error_code": 0, "name": world.topic, "topic_id": world.topic_id, "is_internal": False,
        "partitions": [partition] * 2,
        "topic_authorized_operations": 0b110111111000 if version >= 8 else UNASKED,
    }  # fmt: skip
    fields = {
        "topics": [{"name": world.topic, "topic_id": None}], "allow_auto_topic_creation": False,
        "include_cluster_authorized_operations": True, "include_topic_authorized_operations": True,
    }  # fmt: skip
    brokers = [{"node_id": 1, "host": world.host, "port": world.port, "rack": "rack-1"}]
    return fields, {
        "throttle_time": 0, "brokers": brokers, "cluster_id": lambda name: len(name) > 3, "controller_id": 1,
        "topics": [topic],
        "error_code": 0,
        "cluster_authorized_operations": 0b1111110100000 if 8 <= version <= 10 else UNASKED,
    }  # fmt: skip


@case(ApiKey.DESCRIBE_TOPIC_PARTITIONS)
async def _describe_topic_partitions(world: World, version: int) -> Any:
    name, topic_id = await new_topic_with_id(world, 3)
    partition = {
        "error_code": 0, "leader_id": 1, "leader_epoch": 0, "replica_nodes": [1], "isr_nodes": [1],
        "eligible_leader_replicas": [], "last_known_elr": [], "offline_replicas": [],
    }  # fmt: skip
    topic = {
        "error_code": 0, "name": name, "topic_id": topic_id, "is_internal": False,
        "topic_authorized_operations": 0b110111111000,
        "partitions": [{**partition, "partition_index": 0}, {**partition, "partition_index": 1}],
    }  # fmt: skip
    cursor = {"topic_name": name, "partition_index": 2}
    asked = {
        "topics": [{"name": name}],
        "response_partition_limit": 2,
        "cursor": {"topic_name": name, "partition_index": 0},
    }
    return asked, {"throttle_time": 0, "topics": [topic], "next_cursor": cursor}


@case(ApiKey.DESCRIBE_CLUSTER)
async def _describe_cluster(world: World, version: int) -> Any:
    fields = {
        "include_cluster_authorized_operations": True,
        "endpoint_type": 1,
        "include_fenced_brokers": True,
    }
    broker = {"broker_id": 1, "host": world.host, "port": world.port, "rack": "rack-1", "is_fenced": False}
    return fields, OK | {
        "error_message": None, "endpoint_type": 1, "cluster_id": lambda name: len(name) > 3,
        "controller_id": 1,
        "brokers": [broker], "cluster_authorized_operations": 0b1111110100000,
    }  # fmt: skip


@case(ApiKey.API_VERSIONS)
async def _api_versions(world: World, version: int) -> Any:
    # with a subscription: test_resource_settings.py
    client_metrics = {ApiKey.GET_TELEMETRY_SUBSCRIPTIONS, ApiKey.PUSH_TELEMETRY}

    def everything_else(keys: Any) -> bool:
        announced = [
            (each.api_key, each.min_version, each.max_version)
            for each in keys
            if each.api_key not in client_metrics
        ]
        return announced == api.advertised(HANDLERS.keys - client_metrics)

    supported = [{"name": "tidegate.metadata.version", "min_version": 1, "max_version": 5}]
    if version >= 4:
        supported.append({"name": "transaction.version", "min_version": 0, "max_version": 2})
        supported.append({"name": "group.version", "min_version": 0, "max_version": 1})
    finalized = [("group.version", 1), ("tidegate.metadata.version", 5), ("transaction.version", 2)]
    return {"client_software_name": "tests", "client_software_version": "1.0"}, OK | {
        "api_keys": everything_else, "supported_features": supported,
        "finalized_features_epoch": lambda epoch: epoch > 0,
        "finalized_features": [{"name": n, "max_version_level": v, "min_version_level": v} for n,
            v in finalized],
        "zk_migration_ready": False,
    }  # fmt: skip


# ---- topics ------------------------------------------------------------------------------------------------


@case(ApiKey.CREATE_TOPICS)
async def _create_topics(world: World, version: int) -> Any:
    name = fresh("topic")
    topic = {"name": name, "num_partitions": 3, "replication_factor": 1, "assignments": [],
             "configs": [{"name": "segment.bytes", "value": "1048576"}]}  # fmt: skip
    own = {"segment.bytes": ("1048576", 1), "min.insync.replicas": (ANY, 3)}  # the latter is the cluster's
    configs = [
        {"name": key, "value": value, "read_only": False, "config_source": source, "is_sensitive": False}
        for key, row in TOPIC_CONFIGS.items()
        for value, source in (own.get(key, (row.default, 5)),)
    ]
    answer = {
        "name": name, "topic_id": lambda found: found is not None, "error_code": 0, "error_message": None,
        "num_partitions": 3,
        "replication_factor": 1, "configs": configs, "topic_config_error_code": 0,
    }  # fmt: skip
    return {"topics": [topic], "timeout": 10_000, "validate_only": False}, {
        "throttle_time": 0,
        "topics": [answer],
    }


@case(ApiKey.DELETE_TOPICS)
async def _delete_topics(world: World, version: int) -> Any:
    names = [await new_topic(world), await new_topic(world)]
    fields = {
        "topic_names": names,
        "topics": [{"name": name, "topic_id": None} for name in names],
        "timeout": 10_000,
    }
    answers = [
        {"name": n, "topic_id": lambda found: found is not None, "error_code": 0, "error_message": None}
        for n in names
    ]
    return fields, {"throttle_time": 0, "responses": answers}


@case(ApiKey.CREATE_PARTITIONS)
async def _create_partitions(world: World, version: int) -> Any:
    name = await new_topic(world)
    topics = [{"name": name, "count": 3, "assignments": [{"broker_ids": [1]}] * 2}]
    answer = {"name": name, "error_code": 0, "error_message": None}
    return {"topics": topics, "timeout": 10_000, "validate_only": False}, {
        "throttle_time": 0,
        "results": [answer],
    }


@case(ApiKey.ELECT_LEADERS)
async def _elect_leaders(world: World, version: int) -> Any:
    fields = {
        "election_type": 0,
        "topic_partitions": [{"topic": world.topic, "partitions": [0]}],
        "timeout": 10_000,
    }
    answer = {"partition_id": 0, "error_code": 84, "error_message": "the preferred replica leads already"}
    return fields, OK | {"replica_election_results": [{"topic": world.topic, "partition_result": [answer]}]}


@case(ApiKey.ALTER_PARTITION_REASSIGNMENTS)
async def _alter_partition_reassignments(world: World, version: int) -> Any:
    partitions = [{"partition_index": 0, "replicas": None}, {"partition_index": 1, "replicas": [1]}]
    fields = {"timeout": 10_000, "topics": [{"name": world.topic, "partitions": partitions}]}
    still = {"partition_index": 0, "error_code": 85, "error_message": "this partition does not move"}
    there = {"partition_index": 1, "error_code": 0, "error_message": None}
    answer = {
        "responses": [{"name": world.topic, "partitions": [still, there]}],
        "allow_replication_factor_change": True,
    }
    return fields, OK | {"error_message": None} | answer


@case(ApiKey.LIST_PARTITION_REASSIGNMENTS)
async def _list_partition_reassignments(world: World, version: int) -> Any:
    fields = {"timeout": 10_000, "topics": [{"name": world.topic, "partition_indexes": [0, 1]}]}
    return fields, OK | {"error_message": None, "topics": []}


@case(ApiKey.UPDATE_FEATURES)
async def _update_features(world: World, version: int) -> Any:
    update = {
        "feature": "transaction.version",
        "max_version_level": 2,
        "allow_downgrade": False,
        "upgrade_type": 1,
    }
    fields = {"timeout": 10_000, "feature_updates": [update], "validate_only": False}
    results = [{"feature": "transaction.version", "error_code": 0, "error_message": None}]
    return fields, OK | {"error_message": None, "results": results}


@case(ApiKey.UNREGISTER_BROKER)
async def _unregister_broker(world: World, version: int) -> Any:
    return {"broker_id": 1}, OK | {"error_code": 44, "error_message": "broker 1 is alive: stop it first"}


@case(ApiKey.DESCRIBE_CONFIGS)
async def _describe_configs(world: World, version: int) -> Any:
    resource = {"resource_type": 2, "resource_name": world.topic, "configuration_keys": ["segment.ms"]}
    fields = {"resources": [resource], "include_synonyms": True, "include_documentation": True}
    entry = {
        "name": "segment.ms", "value": "604800000", "read_only": False, "config_source": 5,
        "is_sensitive": False,
        "synonyms": [], "config_type": 5,
        "documentation": TOPIC_CONFIGS["segment.ms"].documentation,
    }  # fmt: skip
    result = {
        "error_code": 0, "error_message": None, "resource_type": 2, "resource_name": world.topic,
        "configs": [entry]
    }  # fmt: skip
    return fields, {"throttle_time": 0, "results": [result]}


def _changed(name: str) -> dict[str, Any]:
    answer = {"error_code": 0, "error_message": None, "resource_type": 2, "resource_name": name}
    return {"throttle_time": 0, "responses": [answer]}


@case(ApiKey.ALTER_CONFIGS)
async def _alter_configs(world: World, version: int) -> Any:
    name = await new_topic(world)
    resource = {
        "resource_type": 2,
        "resource_name": name,
        "configs": [{"name": "segment.ms", "value": "5000"}],
    }
    return {"resources": [resource], "validate_only": False}, _changed(name)


@case(ApiKey.INCREMENTAL_ALTER_CONFIGS)
async def _incremental_alter_configs(world: World, version: int) -> Any:
    name = await new_topic(world)
    configs = [{"name": "segment.ms", "config_operation": 0, "value": "5000"}]
    resource = {"resource_type": 2, "resource_name": name, "configs": configs}
    return {"resources": [resource], "validate_only": False}, _changed(name)


# ---- groups ------------------------------------------------------------------------------------------------


@case(ApiKey.FIND_COORDINATOR)
async def _find_coordinator(world: World, version: int) -> Any:
    name = fresh("group")
    await found(world, 0, name)
    where = {"error_code": 0, "error_message": None, "node_id": 1, "host": world.host, "port": world.port}
    fields = {"key": name, "key_type": 0, "coordinator_keys": [name]}
    return fields, {"throttle_time": 0, "coordinators": [where | {"key": name}], **where}


@case(ApiKey.JOIN_GROUP)
async def _join_group(world: World, version: int) -> Any:
    name = await group_with_offset(world)  # its coordinator is there
    metadata, protocol = CONSUMER
    fields: dict[str, Any] = {
        "group_id": name, "session_timeout": 30_000, "rebalance_timeout": 30_000, "member_id": "",
        "group_instance_id": None,
        "protocol_type": "consumer", "protocols": [{"name": protocol, "metadata": metadata}], "reason": None,
    }  # fmt: skip
    if version >= 4:
        fields["member_id"] = (await world.asker.ask(ApiKey.JOIN_GROUP, version, fields)).member_id
    me = fields["member_id"] or (lambda member_id: len(member_id) > 30)
    return fields, OK | {
        "generation_id": 1, "protocol_type": "consumer", "protocol_name": protocol, "leader": me,
        "skip_assignment": False,
        "member_id": me, "members": [{"member_id": me, "group_instance_id": None, "metadata": metadata}],
    }  # fmt: skip


@case(ApiKey.SYNC_GROUP)
async def _sync_group(world: World, version: int) -> Any:
    name, member = await new_group(world, synced=False)
    fields = {
        "group_id": name, "generation_id": 1, "member_id": member, "group_instance_id": None,
        "protocol_type": "consumer",
        "protocol_name": CONSUMER[1], "assignments": [{"member_id": member, "assignment": b"mine"}],
    }  # fmt: skip
    return fields, OK | {"protocol_type": "consumer", "protocol_name": CONSUMER[1], "assignment": b"mine"}


@case(ApiKey.HEARTBEAT)
async def _heartbeat(world: World, version: int) -> Any:
    name, member = await new_group(world)
    return {"group_id": name, "generation_id": 1, "member_id": member, "group_instance_id": None}, OK


@case(ApiKey.LEAVE_GROUP)
async def _leave_group(world: World, version: int) -> Any:
    name, member = await new_group(world)
    members = [{"member_id": member, "group_instance_id": None, "reason": None}]
    answer = {"member_id": member, "group_instance_id": None, "error_code": 0}
    return {"group_id": name, "member_id": member, "members": members}, OK | {"members": [answer]}


@case(ApiKey.DESCRIBE_GROUPS)
async def _describe_groups(world: World, version: int) -> Any:
    name, member = await new_group(world)
    described = {
        "member_id": member, "group_instance_id": None, "client_id": "conformance",
        "client_host": lambda host: "127.0.0.1" in host,
        "member_metadata": CONSUMER[0], "member_assignment": b"mine",
    }  # fmt: skip
    group = {
        "error_code": 0, "error_message": None, "group_id": name, "group_state": "Stable",
        "protocol_type": "consumer",
        "protocol_data": CONSUMER[1],
        "members": [described], "authorized_operations": 0b110101001000 if version >= 3 else UNASKED,
    }  # fmt: skip
    return {"groups": [name], "include_authorized_operations": True}, {"throttle_time": 0, "groups": [group]}


@case(ApiKey.LIST_GROUPS)
async def _list_groups(world: World, version: int) -> Any:
    name, _ = await new_group(world)
    listing = {
        "group_id": name,
        "protocol_type": "consumer",
        "group_state": "Stable",
        "group_type": "classic",
    }

    def holds(groups: list[Any]) -> bool:
        states = {getattr(group, "group_state", "Stable") for group in groups}
        found = next(group for group in groups if group.group_id == name)
        return states == {"Stable"} and all(
            getattr(found, key, value) == value for key, value in listing.items()
        )

    return {"states_filter": ["Stable"], "types_filter": ["Classic"]}, OK | {"groups": holds}


@case(ApiKey.DELETE_GROUPS)
async def _delete_groups(world: World, version: int) -> Any:
    name = await group_with_offset(world)
    return {"groups_names": [name]}, {"throttle_time": 0, "results": [{"group_id": name, "error_code": 0}]}


@case(ApiKey.OFFSET_COMMIT)
async def _offset_commit(world: World, version: int) -> Any:
    name, member = await new_group(world)
    part = {
        "partition_index": 0,
        "committed_offset": 2,
        "committed_leader_epoch": 0,
        "committed_metadata": None,
    }
    fields = {
        "group_id": name, "generation_id_or_member_epoch": 1, "member_id": member, "group_instance_id": None,
        "retention_time": -1, "topics": [{"name": world.topic, "partitions": [part]}],
    }  # fmt: skip
    answer = {"partition_index": 0, "error_code": 0}
    return fields, {"throttle_time": 0, "topics": [{"name": world.topic, "partitions": [answer]}]}


@case(ApiKey.OFFSET_FETCH)
async def _offset_fetch(world: World, version: int) -> Any:
    name = await group_with_offset(world)
    topics = [
        {"name": world.topic, "partition_indexes": [0, 1]},
        {"name": "unnamed", "partition_indexes": []},
    ]
    committed = {
        "partition_index": 0,
        "committed_offset": 3,
        "committed_leader_epoch": 0,
        "metadata": "note",
        "error_code": 0,
    }
    absent = {
        "partition_index": 1,
        "committed_offset": -1,
        "committed_leader_epoch": -1,
        "metadata": "",
        "error_code": 0,
    }
    empty = {"name": "unnamed", "partitions": []}
    answer = {"error_code": 0, "topics": [{"name": world.topic, "partitions": [committed, absent]}, empty]}
    group = {"group_id": name, "topics": topics}
    fields = group | {"groups": [group], "require_stable": True}
    return fields, {"throttle_time": 0, "groups": [answer | {"group_id": name}], **answer}


@case(ApiKey.OFFSET_DELETE)
async def _offset_delete(world: World, version: int) -> Any:
    name = await group_with_offset(world)
    topics = [{"name": world.topic, "partitions": [{"partition_index": 0}, {"partition_index": 77}]}]
    answers = [{"partition_index": 0, "error_code": 0}, {"partition_index": 77, "error_code": 3}]
    return {"group_id": name, "topics": topics}, OK | {
        "topics": [{"name": world.topic, "partitions": answers}]
    }


# ---- transactions ------------------------------------------------------------------------------------------


@case(ApiKey.INIT_PRODUCER_ID)
async def _init_producer_id(world: World, version: int) -> Any:
    name, ids = await new_transaction(world, partition=False)
    fields = {
        "transactional_id": name,
        "transaction_timeout": 30_000,
        "producer_id": -1,
        "producer_epoch": -1,
    }
    return fields, OK | {"producer_id": ids["producer_id"], "producer_epoch": ids["producer_epoch"] + 1}


@case(ApiKey.ADD_PARTITIONS_TO_TXN)
async def _add_partitions_to_txn(world: World, version: int) -> Any:
    name, ids = await new_transaction(world, partition=False)
    topics = [{"name": world.topic, "partitions": [0]}]
    results = [
        {"name": world.topic, "results_by_partition": [{"partition_index": 0, "partition_error_code": 0}]}
    ]
    if version == 4:  # this version knows only transactions v1, and only brokers send it
        await world.ask(
            ApiKey.ADD_PARTITIONS_TO_TXN,
            3,
            **{f"v3_and_below_{k}": v for k, v in ids.items()},
            v3_and_below_topics=topics,
        )
    fields = {f"v3_and_below_{key}": value for key, value in ids.items()} | {
        "v3_and_below_topics": topics,
        "transactions": [ids | {"verify_only": version == 4, "topics": topics}],
    }
    answer = {"transactional_id": name, "topic_results": results}
    return fields, OK | {"results_by_topic_v3_and_below": results, "results_by_transaction": [answer]}


@case(ApiKey.ADD_OFFSETS_TO_TXN)
async def _add_offsets_to_txn(world: World, version: int) -> Any:
    _, ids = await new_transaction(world, partition=False)
    return ids | {"group_id": fresh("group")}, OK


@case(ApiKey.END_TXN)
async def _end_txn(world: World, version: int) -> Any:
    _, ids = await new_transaction(world)
    identity = {"producer_id": ids["producer_id"], "producer_epoch": ids["producer_epoch"] + 1}
    return ids | {"committed": True}, OK | identity


@case(ApiKey.TXN_OFFSET_COMMIT)
async def _txn_offset_commit(world: World, version: int) -> Any:
    _name, ids = await new_transaction(world, partition=False)
    group, member = await new_group(world)
    if version < 5:
        answer = await world.ask(ApiKey.ADD_OFFSETS_TO_TXN, 3, **ids, group_id=group)
        assert answer.error_code == 0
    part = {
        "partition_index": 0,
        "committed_offset": 2,
        "committed_leader_epoch": 0,
        "committed_metadata": None,
    }
    fields = ids | {
        "group_id": group, "generation_id": 1, "member_id": member, "group_instance_id": None,
        "topics": [{"name": world.topic, "partitions": [part]}],
    }  # fmt: skip
    result = {"partition_index": 0, "error_code": 0}
    return fields, {"throttle_time": 0, "topics": [{"name": world.topic, "partitions": [result]}]}


@case(ApiKey.WRITE_TXN_MARKERS)
async def _write_txn_markers(world: World, version: int) -> Any:
    topic = await new_topic(world)
    marker = {
        "producer_id": 4_000_000, "producer_epoch": 0, "transaction_result": False, "coordinator_epoch": 0,
        "transaction_version": 0, "topics": [{"name": topic, "partition_indexes": [0]}],
    }  # fmt: skip
    answer = {"partition_index": 0, "error_code": 0}
    topics = [{"name": topic, "partitions": [answer]}]
    return {"markers": [marker]}, {"markers": [{"producer_id": 4_000_000, "topics": topics}]}


@case(ApiKey.DESCRIBE_TRANSACTIONS)
async def _describe_transactions(world: World, version: int) -> Any:
    name, ids = await new_transaction(world)
    state = {
        "error_code": 0, "transactional_id": name, "transaction_state": "Ongoing",
        "transaction_timeout": 30_000,
        "transaction_start_time": lambda at: at > 1_600_000_000_000, "producer_id": ids["producer_id"],
        "producer_epoch": 0,
        "topics": [{"topic": world.topic, "partitions": [1]}],
    }  # fmt: skip
    return {"transactional_ids": [name]}, {"throttle_time": 0, "transaction_states": [state]}


@case(ApiKey.LIST_TRANSACTIONS)
async def _list_transactions(world: World, version: int) -> Any:
    name, ids = await new_transaction(world)
    fields = {"state_filters": ["Ongoing", "Sleeping"], "producer_id_filters": [ids["producer_id"]],
        "duration_filter": -1,
              "transactional_id_pattern": f"{name}|another"}  # fmt: skip
    listing = {"transactional_id": name, "producer_id": ids["producer_id"], "transaction_state": "Ongoing"}
    return fields, OK | {"unknown_state_filters": ["Sleeping"], "transaction_states": [listing]}
