"""Which nodes may take part in a cluster: brokers that are forgotten and come back as new, and nodes of an
older version (KIP-584)."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from tidegate.client import Admin, NewTopic
from tidegate.client.connecting.errors import RequestError
from tidegate.processes.local_cluster import LocalCluster, LocalNode
from tidegate.tests.eventually import eventually
from tidegate.wire.api import ApiKey
from tidegate.wire.errors import ErrorCode

from .conformance import Asker
from .protocol_cases import fresh
from .witness import log_of

pytestmark = [pytest.mark.cluster, pytest.mark.xdist_group("roomy"), pytest.mark.timeout(180)]

TRANSACTIONS = "transaction.version"
# A node that knows the metadata's feature by its former name alone, as the version before this one.
OLDER = """
from tidegate.controller.state import model
import tidegate.coordinator.group.levels  # an older version has its own newest level
del model.SUPPORTED_FEATURES["tidegate.metadata.version"]
from tidegate.node.__main__ import main
main()
"""

# A node that does not know a setting which the metadata hold.  (Its logs have a field for it, which always
# has the default.)
UNKNOWING = """
from tidegate.storage import topic_config
del topic_config.TOPIC_CONFIGS["record.check"]
known = topic_config.effective_topic_config
topic_config.effective_topic_config = lambda config: known(config) | {"record.check": "true"}
from tidegate.node.__main__ import main
main()
"""


@pytest.fixture
async def admin(roomy_cluster: LocalCluster) -> AsyncIterator[Admin]:
    async with Admin(roomy_cluster.bootstrap) as admin:
        yield admin


def command(cluster: LocalCluster, *arguments: str, fails: bool = False) -> str:
    """What `tidegate ARGUMENTS` says: its output, or its one line of complaint."""
    environment = os.environ | {"TIDEGATE_BOOTSTRAP": cluster.bootstrap}
    line = [sys.executable, "-m", "tidegate.client.command_line", *arguments]
    done = subprocess.run(line, capture_output=True, text=True, timeout=60, env=environment)
    assert (done.returncode != 0) == fails, (done.stdout, done.stderr)
    return done.stderr if fails else done.stdout


async def run_as(program: str, node: LocalNode) -> asyncio.subprocess.Process:
    """This program in the node's place; the node itself must not run."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("TIDEGATE_")}
    return await asyncio.create_subprocess_exec(
        sys.executable, "-c", program, "--config", str(node.config_path),
        stderr=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, env=environment,
    )  # fmt: skip


async def gone_from(admin: Admin, node_id: int) -> bool:
    return not next(broker.alive for broker in await admin.list_brokers() if broker.node_id == node_id)


async def drain_4(cluster: LocalCluster, *options: str) -> str:
    return await asyncio.to_thread(command, cluster, "brokers", "drain", "4", *options)


async def test_a_broker_is_forgotten_and_its_id_comes_back_as_new(
    roomy_cluster: LocalCluster, admin: Admin
) -> None:
    node = roomy_cluster.node(4)
    topic = fresh("held")
    await admin.create_topics([NewTopic(topic, 1, 3)])
    await admin.reassign_partitions({(topic, 0): (1, 2, 4)})
    with pytest.raises(RequestError, match="is alive: stop it first"):
        await admin.unregister_broker(4)
    await eventually(lambda: _settled(admin), "the move ends")
    await node.terminate()
    await eventually(lambda: gone_from(admin, 4), "4 is fenced")
    with pytest.raises(RequestError, match=r"broker 4 is a replica of .*-0") as refused:
        await admin.unregister_broker(4)
    assert refused.value.code is ErrorCode.POLICY_VIOLATION
    assert topic in await drain_4(roomy_cluster, "--dry-run")
    assert await _settled(admin)
    assert "then `tidegate brokers unregister 4`" in await drain_4(roomy_cluster, "--wait")
    assert "broker 4 is forgotten" in await asyncio.to_thread(
        command, roomy_cluster, "brokers", "unregister", "4"
    )
    assert [broker.node_id for broker in await admin.list_brokers()] == [1, 2, 3]
    await node.start()
    await node.wait_ready()
    listed = json.loads(await asyncio.to_thread(command, roomy_cluster, "brokers", "list", "--json"))
    assert [(row["broker"], row["alive"], row["replicas"]) for row in listed][3] == (4, True, 0)
    assert not list(Path(node.data_path).glob(f"**/{topic}-0")), "what it held before is not its own any more"


async def test_a_broker_that_is_needed_is_not_drained(roomy_cluster: LocalCluster, admin: Admin) -> None:
    topic = fresh("everywhere")
    await admin.create_topics([NewTopic(topic, 2, 4)])
    said = await asyncio.to_thread(command, roomy_cluster, "brokers", "drain", "4", fails=True)
    assert f"no other live broker can take {topic}:0 and 1 more" in said
    assert "broker 9 is not registered" in await asyncio.to_thread(
        command, roomy_cluster, "brokers", "drain", "9", fails=True
    )
    assert await _settled(admin), "nothing was moved"
    await admin.delete_topics([topic])


async def _settled(admin: Admin) -> bool:
    return not await admin.list_reassignments()


async def test_a_broker_unregistered_while_suspended_exits_when_it_resumes(
    roomy_cluster: LocalCluster, admin: Admin
) -> None:
    node = roomy_cluster.node(4)
    await drain_4(roomy_cluster, "--wait")
    node.pause()
    try:
        await eventually(lambda: gone_from(admin, 4), "4 is fenced")
        await admin.unregister_broker(4)
    finally:
        node.resume()
    assert await node.wait_exit(30) not in (0, None)
    assert "broker 4 is not registered" in log_of(roomy_cluster, 4)
    await node.start()
    await node.wait_ready()


@pytest.mark.parametrize("node_id", [4, 3], ids=["broker", "broker-and-controller"])
async def test_an_older_node_that_does_not_know_a_finalised_level_does_not_start(
    roomy_cluster: LocalCluster, node_id: int
) -> None:
    node = roomy_cluster.node(node_id)
    await node.terminate()
    try:
        older = await run_as(OLDER, node)
        output, errors = await asyncio.wait_for(older.communicate(), 60)
    finally:
        await node.start()
        await node.wait_ready()
    said = (output + errors).decode()
    assert older.returncode in (3, 70), said
    assert "the cluster runs tidegate.metadata.version=5" in said
    assert "does not know it: upgrade it" in said
    assert "Traceback" not in said


async def test_a_node_lives_with_a_setting_that_it_does_not_know(
    roomy_cluster: LocalCluster, admin: Admin
) -> None:
    node, topic = roomy_cluster.node(4), fresh("newer")
    await admin.create_topics([NewTopic(topic, 1, 4, {"record.check": "false"})])
    await node.terminate()
    unknowing = await run_as(UNKNOWING, node)
    assert unknowing.stdout is not None
    assert unknowing.stderr is not None
    said = asyncio.gather(unknowing.stdout.read(), unknowing.stderr.read())
    try:
        await eventually(lambda: _in_sync(admin, topic, 4), "the node holds the topic, and is in sync", 60)
        await admin.alter_config(topic, {"segment.ms": "1000000"})
        async with Asker(node.kafka_address) as asker:
            wanted = {
                "resource_type": 2,
                "resource_name": topic,
                "configuration_keys": ["record.check", "segment.ms"],
            }
            asked = {"resources": [wanted], "include_synonyms": False, "include_documentation": False}

            async def shown() -> dict[str, str]:
                answer = await asker.ask(ApiKey.DESCRIBE_CONFIGS, 4, asked)
                return {each.name: each.value for each in answer.results[0].configs}

            async def both() -> bool:
                return await shown() == {"record.check": "false", "segment.ms": "1000000"}

            await eventually(both, "it shows what it does not know, beside what is changed later")
        assert unknowing.returncode is None
        unknowing.terminate()
        assert await asyncio.wait_for(unknowing.wait(), 60) == 0
    finally:
        if unknowing.returncode is None:
            unknowing.kill()
        await unknowing.wait()
        await node.start()
        await node.wait_ready()
    lines = b"".join(await said).decode().splitlines()
    assert sum("topic_setting_unknown" in line for line in lines) == 1


async def _in_sync(admin: Admin, topic: str, node_id: int) -> bool:
    return node_id in (await admin.describe_topics([topic], config=False))[0].partitions[0].in_sync_replicas


def test_a_foreign_client_raises_and_lowers_levels(roomy_cluster: LocalCluster) -> None:
    """kafka-python, as it is: what it may do it does, and each refusal is the error that it names."""
    from kafka.admin import KafkaAdminClient, UpdateFeatureType
    from kafka.errors import FeatureUpdateFailedError, InvalidUpdateVersionError

    client = KafkaAdminClient(bootstrap_servers=roomy_cluster.bootstrap)

    def levels() -> dict[str, int]:
        return {name: each["finalized"][0] for name, each in client.describe_features().items()}

    def become(expected: int) -> bool:
        """Any node may be asked, and hears of a new level a little later."""
        deadline = time.monotonic() + 10
        while (found := levels()[TRANSACTIONS]) != expected and time.monotonic() < deadline:
            time.sleep(0.02)
        return found == expected

    def lower(kind: UpdateFeatureType) -> dict[str, tuple[UpdateFeatureType, int]]:
        return {TRANSACTIONS: (kind, 1)}

    try:
        assert levels() == {"tidegate.metadata.version": 5, TRANSACTIONS: 2, "group.version": 1}
        supported = {name: each["supported"] for name, each in client.describe_features().items()}
        assert supported == {
            "tidegate.metadata.version": (1, 5),
            TRANSACTIONS: (0, 2),
            "group.version": (0, 1),
        }
        assert client.update_features(lower(UpdateFeatureType.SAFE_DOWNGRADE), validate_only=True) == {
            TRANSACTIONS: "OK"
        }
        assert levels()[TRANSACTIONS] == 2, "validation changes nothing"
        for refused, error in (
            (lower(UpdateFeatureType.UPGRADE), InvalidUpdateVersionError),
            (lower(UpdateFeatureType.UNSAFE_DOWNGRADE), InvalidUpdateVersionError),
            ({"tidegate.metadata.version": (UpdateFeatureType.SAFE_DOWNGRADE, 1)}, InvalidUpdateVersionError),
            ({TRANSACTIONS: 9}, InvalidUpdateVersionError),
            ({"no.such.feature": 1}, InvalidUpdateVersionError),
        ):
            with pytest.raises((error, FeatureUpdateFailedError)) as raised:
                client.update_features(refused)
            assert raised.type is error, refused
        assert levels()[TRANSACTIONS] == 2
        assert client.update_features(lower(UpdateFeatureType.SAFE_DOWNGRADE)) == {TRANSACTIONS: "OK"}
        assert become(1)
    finally:
        assert client.update_features({TRANSACTIONS: 2}) == {TRANSACTIONS: "OK"}
        assert become(2)
        client.close()


async def test_levels_are_described_raised_and_lowered_where_that_is_safe(
    roomy_cluster: LocalCluster, admin: Admin
) -> None:
    from kafka.admin import KafkaAdminClient

    described = {
        each.name: (each.level, each.lowest, each.highest) for each in await admin.describe_features()
    }
    assert described == {
        "tidegate.metadata.version": (5, 1, 5),
        "transaction.version": (2, 0, 2),
        "group.version": (1, 0, 1),
    }

    async def run(*arguments: str, fails: bool = False) -> str:
        return await asyncio.to_thread(lambda: command(roomy_cluster, "features", *arguments, fails=fails))

    assert "tidegate.metadata.version" in await run("describe")
    assert "highest level" in await run("upgrade")
    assert "never lowered" in await run("downgrade", "--feature", "tidegate.metadata.version=1", fails=True)
    assert "could be lowered" in await run("downgrade", "--feature", "transaction.version=1", "--dry-run")
    assert {each.name: each.level for each in await admin.describe_features()}["transaction.version"] == 2
    await run("downgrade", "--feature", "transaction.version=1")
    assert {each.name: each.level for each in await admin.describe_features()}["transaction.version"] == 1
    assert "raised: transaction.version=2" in await run("upgrade")
    theirs = await asyncio.to_thread(lambda: KafkaAdminClient(bootstrap_servers=roomy_cluster.bootstrap))
    assert "transaction.version" in str(await asyncio.to_thread(theirs.describe_features))
    await asyncio.to_thread(theirs.close)


async def test_no_level_is_raised_while_a_controller_is_away(
    roomy_cluster: LocalCluster, admin: Admin
) -> None:
    active = await roomy_cluster.active_controller()
    other = next(node for node in roomy_cluster.nodes[:3] if node.id != active.id)
    await other.terminate()
    try:
        with pytest.raises(RequestError, match=f"controllers {other.id} did not say which levels they know"):
            await admin.update_features({"transaction.version": 2})
    finally:
        await other.start()
        await other.wait_ready()


async def test_consumer_groups_wait_until_the_cluster_has_agreed_on_them(roomy_cluster: LocalCluster) -> None:
    """KIP-848: below group.version 1 a node that does not know their records could become the coordinator."""

    async def refused_by(node: LocalNode) -> list[bool]:
        """Of a heartbeat and a description; the node may hear of the new level between the two."""
        async with Asker(node.kafka_address) as asker:
            beat = {"group_id": fresh("group"), "member_id": "m", "member_epoch": 9}
            codes = [(await asker.ask(ApiKey.CONSUMER_GROUP_HEARTBEAT, 1, beat)).error_code]
            described = await asker.ask(ApiKey.CONSUMER_GROUP_DESCRIBE, 0, {"group_ids": [fresh("group")]})
            codes.append(described.groups[0].error_code)
        return [code == ErrorCode.UNSUPPORTED_VERSION for code in codes]

    async def all_refuse(expected: bool) -> bool:
        return all([await refused_by(node) == [expected, expected] for node in roomy_cluster.nodes])

    assert await all_refuse(False)
    try:
        line = ("features", "downgrade", "--feature", "group.version=0")
        await asyncio.to_thread(lambda: command(roomy_cluster, *line))
        await eventually(lambda: all_refuse(True), "every node has heard that there are no consumer groups")
    finally:
        await asyncio.to_thread(lambda: command(roomy_cluster, "features", "upgrade"))
    await eventually(lambda: all_refuse(False), "every node has heard that there are consumer groups again")
