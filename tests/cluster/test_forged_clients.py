"""What a user with rights of its own may not do to others: requests of brokers, other users' transactions and
producer ids, and records after a right was taken away."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import pytest
from tidegate.bench.permissions.matrix import Client
from tidegate.security.acls import CLUSTER_NAME, AclOperation, PatternType, PermissionType, ResourceType
from tidegate.tests.guarded_nodes import guarded_node
from tidegate.wire.api import ApiKey
from tidegate.wire.errors import ErrorCode
from tidegate.wire.records import NewRecord, encode_batch

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(120)]

TOPIC: Final = "payments"
WAIT_MS: Final = 10_000
READ_COMMITTED: Final = 1
NOBODY: Final = {"producer_id": -1, "producer_epoch": -1}
RIGHTS: Final = {
    "alice": (
        (ResourceType.TOPIC, TOPIC, AclOperation.WRITE),
        (ResourceType.TOPIC, TOPIC, AclOperation.READ),
        (ResourceType.TRANSACTIONAL_ID, "alice", AclOperation.WRITE),
        (ResourceType.GROUP, "alice", AclOperation.READ),
    ),
    "mallory": (
        (ResourceType.TOPIC, TOPIC, AclOperation.ALL),
        (ResourceType.TRANSACTIONAL_ID, "mallory", AclOperation.ALL),
        (ResourceType.GROUP, "mallory", AclOperation.ALL),
    ),
}
SETTINGS: Final[Mapping[str, object]] = {
    "offsets.topic.num.partitions": 1,
    "transaction.state.log.num.partitions": 1,
}


def acl(user: str, resource_type: ResourceType, name: str, operation: AclOperation) -> dict[str, object]:
    return {
        "resource_type": int(resource_type), "resource_name": name,
        "resource_pattern_type": int(PatternType.LITERAL), "principal": f"User:{user}", "host": "*",
        "operation": int(operation), "permission_type": int(PermissionType.ALLOW),
    }  # fmt: skip


@dataclass
class Users:
    """A topic that alice and mallory may write and read, and a transactional id for each of them."""

    root: Client
    alice: Client
    mallory: Client

    def prepare(self) -> None:
        wanted = [acl(user, *right) for user, rights in RIGHTS.items() for right in rights]
        made = self.root.ask(ApiKey.CREATE_ACLS, 3, {"creations": wanted})
        assert not any(each.error_code for each in made.results)
        topic = {
            "name": TOPIC, "num_partitions": 1, "replication_factor": 1, "assignments": [], "configs": []
        }  # fmt: skip
        fields = {"topics": [topic], "timeout": WAIT_MS, "validate_only": False}
        assert not self.root.ask(ApiKey.CREATE_TOPICS, 7, fields).topics[0].error_code

    def begin(self, client: Client, transactional_id: str) -> dict[str, int]:
        """The producer id and epoch of the transactional id."""
        deadline = time.monotonic() + 30
        while time.monotonic() < deadline:
            client.ask(ApiKey.FIND_COORDINATOR, 3, {"key_type": 1, "key": transactional_id})
            answer = init_producer_id(client, transactional_id)
            if not answer.error_code:
                return {"producer_id": answer.producer_id, "producer_epoch": answer.producer_epoch}
            time.sleep(0.05)
        pytest.fail(f"{transactional_id}: {answer}")

    def write(self, transactional_id: str, identity: Mapping[str, int], sequence: int = 0) -> ErrorCode:
        return produce(self.alice, transactional_id, identity, sequence)

    def committed(self) -> int:
        """How many bytes a read_committed reader gets."""
        return len(fetch(self.alice, isolation=READ_COMMITTED).records or b"")


def init_producer_id(client: Client, transactional_id: str) -> Any:
    fields = {"transactional_id": transactional_id, "transaction_timeout": 60_000, **NOBODY}
    return client.ask(ApiKey.INIT_PRODUCER_ID, 4, fields)


def produce(
    client: Client, transactional_id: str | None, identity: Mapping[str, int], sequence: int = 0
) -> ErrorCode:
    """One record, by a version in which the leader enlists the partition."""
    records = encode_batch(
        [NewRecord(None, b"v", (), int(time.time() * 1000))],
        producer_id=identity["producer_id"],
        producer_epoch=identity["producer_epoch"],
        base_sequence=sequence,
        transactional=transactional_id is not None,
    )
    fields = {
        "transactional_id": transactional_id, "acks": -1, "timeout": WAIT_MS,
        "topic_data": [{"name": TOPIC, "partition_data": [{"index": 0, "records": records}]}],
    }  # fmt: skip
    answer = client.ask(ApiKey.PRODUCE, 12, fields)
    return ErrorCode.from_wire(int(answer.responses[0].partition_responses[0].error_code))


def fetch(client: Client, *, replica: int = -1, isolation: int = 0, offset: int = 0, wait_ms: int = 0) -> Any:
    part = {
        "partition": 0, "current_leader_epoch": -1, "fetch_offset": offset, "last_fetched_epoch": -1,
        "log_start_offset": -1, "partition_max_bytes": 1 << 20,
    }  # fmt: skip
    fields = {
        "replica_id": replica, "max_wait": wait_ms, "min_bytes": 1, "max_bytes": 1 << 20,
        "isolation_level": isolation, "session_id": 0, "session_epoch": -1, "rack_id": "",
        "forgotten_topics_data": [], "topics": [{"topic": TOPIC, "partitions": [part]}],
    }  # fmt: skip
    return client.ask(ApiKey.FETCH, 12, fields).responses[0].partitions[0]


def end(client: Client, transactional_id: str, identity: Mapping[str, int], *, committed: bool) -> ErrorCode:
    fields = {"transactional_id": transactional_id, **identity, "committed": committed}
    return ErrorCode.from_wire(int(client.ask(ApiKey.END_TXN, 5, fields).error_code))


@pytest.fixture
async def users(tmp_path: Path) -> AsyncIterator[Users]:
    async with guarded_node(tmp_path / "cluster", RIGHTS, SETTINGS) as address:
        made = Users(*(Client(address, name) for name in ("root", *RIGHTS)))
        await asyncio.to_thread(made.prepare)
        yield made
        for client in (made.root, made.alice, made.mallory):
            client.close()


def brokers_requests(users: Users) -> None:
    identity = users.begin(users.alice, "alice")
    assert users.write("alice", identity) is ErrorCode.NONE
    assert fetch(users.mallory, replica=2).error_code == ErrorCode.TOPIC_AUTHORIZATION_FAILED
    assert fetch(users.mallory).error_code == ErrorCode.NONE
    topics = [{"name": TOPIC, "partition_indexes": [0]}]
    marker = {**identity, "transaction_result": True, "coordinator_epoch": 99, "topics": topics}
    forged = users.mallory.ask(ApiKey.WRITE_TXN_MARKERS, 1, {"markers": [marker]})
    codes = {part.error_code for topic in forged.markers[0].topics for part in topic.partitions}
    assert codes == {ErrorCode.CLUSTER_AUTHORIZATION_FAILED}
    enlisted = {"transactional_id": "alice", **identity, "verify_only": False}
    wanted = {"transactions": [{**enlisted, "topics": [{"name": TOPIC, "partitions": [0]}]}]}
    answer = users.mallory.ask(ApiKey.ADD_PARTITIONS_TO_TXN, 5, wanted)
    assert answer.error_code == ErrorCode.CLUSTER_AUTHORIZATION_FAILED
    assert users.committed() == 0, "the transaction is undecided"
    assert end(users.alice, "alice", identity, committed=True) is ErrorCode.NONE


async def test_requests_of_brokers_are_refused_to_a_user(users: Users) -> None:
    await asyncio.to_thread(brokers_requests, users)


def others_transactions(users: Users) -> None:
    identity = users.begin(users.alice, "alice")
    assert users.write("alice", identity) is ErrorCode.NONE
    refused = ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
    assert end(users.mallory, "alice", identity, committed=False) is refused
    assert init_producer_id(users.mallory, "alice").error_code == refused
    assert produce(users.mallory, "alice", identity, 1) is refused
    assert users.write("alice", identity, 1) is ErrorCode.NONE
    assert end(users.alice, "alice", identity, committed=True) is ErrorCode.NONE


async def test_nobody_ends_or_fences_a_transaction_without_a_right_to_its_id(users: Users) -> None:
    await asyncio.to_thread(others_transactions, users)


def foreign_producer_ids(users: Users) -> None:
    """Mallory may write the topic, and has a transactional id: both of its own."""
    identity = users.begin(users.alice, "alice")
    users.begin(users.mallory, "mallory")
    newest = {**identity, "producer_epoch": 32_000}
    assert users.write("alice", identity) is ErrorCode.NONE
    in_transaction = {
        "the epoch of alice": produce(users.mallory, "mallory", identity, 1),
        "a higher epoch": produce(users.mallory, "mallory", newest),
    }
    assert set(in_transaction.values()) == {ErrorCode.INVALID_PRODUCER_ID_MAPPING}, in_transaction
    outside = {
        "the epoch of alice": produce(users.mallory, None, identity, 1),
        "a higher epoch": produce(users.mallory, None, newest),
    }
    assert set(outside.values()) == {ErrorCode.INVALID_TXN_STATE}, outside
    assert users.write("alice", identity, 1) is ErrorCode.NONE
    assert end(users.alice, "alice", identity, committed=True) is ErrorCode.NONE
    # Between two transactions of alice.
    assert produce(users.mallory, "mallory", newest) is ErrorCode.INVALID_PRODUCER_ID_MAPPING
    assert produce(users.mallory, None, newest) is ErrorCode.INVALID_TXN_STATE
    again = users.begin(users.alice, "alice")
    assert users.write("alice", again) is ErrorCode.NONE
    assert end(users.alice, "alice", again, committed=True) is ErrorCode.NONE


def commit_offset(
    client: Client, transactional_id: str, group: str, identity: Mapping[str, int]
) -> ErrorCode:
    part = {
        "partition_index": 0, "committed_offset": 7, "committed_leader_epoch": -1, "committed_metadata": ""
    }  # fmt: skip
    fields = {
        "transactional_id": transactional_id, "group_id": group, **identity, "generation_id": -1,
        "member_id": "", "group_instance_id": None, "topics": [{"name": TOPIC, "partitions": [part]}],
    }  # fmt: skip
    answer = client.ask(ApiKey.TXN_OFFSET_COMMIT, 5, fields)
    return ErrorCode.from_wire(int(answer.topics[0].partitions[0].error_code))


def foreign_offsets(users: Users) -> None:
    """The offsets of both groups are in one partition."""
    identity = users.begin(users.alice, "alice")
    users.begin(users.mallory, "mallory")
    for client, group in ((users.alice, "alice"), (users.mallory, "mallory")):
        client.ask(ApiKey.FIND_COORDINATOR, 3, {"key_type": 0, "key": group})
    deadline = time.monotonic() + 30
    while commit_offset(users.alice, "alice", "alice", identity) and time.monotonic() < deadline:
        time.sleep(0.05)
    forged = commit_offset(users.mallory, "mallory", "mallory", identity)
    assert forged is ErrorCode.INVALID_PRODUCER_ID_MAPPING
    assert end(users.alice, "alice", identity, committed=True) is ErrorCode.NONE


async def test_a_foreign_producer_id_commits_no_offsets(users: Users) -> None:
    await asyncio.to_thread(foreign_offsets, users)


def members_topics(users: Users) -> None:
    """Mallory may not describe what its pattern finds."""
    secret = {
        "name": "secret",
        "num_partitions": 1,
        "replication_factor": 1,
        "assignments": [],
        "configs": [],
    }
    users.root.ask(ApiKey.CREATE_TOPICS, 7, {"topics": [secret], "timeout": WAIT_MS, "validate_only": False})
    users.mallory.ask(ApiKey.FIND_COORDINATOR, 3, {"key_type": 0, "key": "mallory"})
    member = {
        "group_id": "mallory", "member_id": "m", "member_epoch": 0, "instance_id": None, "rack_id": None,
        "rebalance_timeout": 30_000, "subscribed_topic_names": None, "subscribed_topic_regex": "s.*",
        "server_assignor": None, "topic_partitions": [],
    }  # fmt: skip
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        users.mallory.ask(ApiKey.CONSUMER_GROUP_HEARTBEAT, 1, member)
        seen = describe_group(users.root)
        if seen.members and seen.members[0].assignment.topic_partitions:
            break
        time.sleep(0.05)
    assert [each.topic_name for each in seen.members[0].assignment.topic_partitions] == ["secret"]
    described = describe_group(users.mallory)
    assert described.error_code == ErrorCode.TOPIC_AUTHORIZATION_FAILED
    assert not described.members


def describe_group(client: Client) -> Any:
    fields = {"group_ids": ["mallory"], "include_authorized_operations": False}
    return client.ask(ApiKey.CONSUMER_GROUP_DESCRIBE, 1, fields).groups[0]


async def test_a_group_names_no_topic_that_the_client_may_not_describe(users: Users) -> None:
    await asyncio.to_thread(members_topics, users)


async def test_a_foreign_producer_id_neither_writes_nor_fences(users: Users) -> None:
    await asyncio.to_thread(foreign_producer_ids, users)


async def test_a_long_poll_carries_nothing_after_its_right_is_gone(users: Users) -> None:
    wanted = {
        "resource_type_filter": int(ResourceType.TOPIC), "resource_name_filter": TOPIC,
        "pattern_type_filter": int(PatternType.LITERAL), "principal_filter": "User:mallory",
        "host_filter": None, "operation": 1, "permission_type": 1,
    }  # fmt: skip
    poll = asyncio.create_task(asyncio.to_thread(fetch, users.mallory, wait_ms=20_000))
    await asyncio.to_thread(_until_waiting, users)
    removed = await asyncio.to_thread(users.root.ask, ApiKey.DELETE_ACLS, 3, {"filters": [wanted]})
    assert len(removed.filter_results[0].matching_acls) == 1
    sent = await asyncio.to_thread(produce, users.alice, None, NOBODY, -1)
    assert sent is ErrorCode.NONE
    answer = await poll
    assert answer.error_code == ErrorCode.TOPIC_AUTHORIZATION_FAILED
    assert not answer.records


def _until_waiting(users: Users) -> None:
    """A request that the node gets after the poll is answered: the poll has been looked at by then."""
    resource = (ResourceType.CLUSTER, CLUSTER_NAME, AclOperation.DESCRIBE)
    for _ in range(3):
        users.root.ask(ApiKey.CREATE_ACLS, 3, {"creations": [acl("carol", *resource)]})
