"""Real node processes on loopback, one three-node cluster for all tests of this folder that do not kill
nodes.

The tests of one xdist group share a worker, so that two cores carry one cluster at a time.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tidegate.client.administration.admin import Admin
from tidegate.client.administration.descriptions import NewTopic
from tidegate.processes.local_cluster import LocalCluster
from tidegate.tests.foreign_clients import Program
from tidegate.tests.started import started
from tidegate.wire.api import ApiKey

from .conformance import Asker
from .programs import CASE_TIMEOUT_S, case_of
from .protocol_cases import World, produce, records
from .secured_ways import SecuredCluster
from .witness import kept_up


@pytest.fixture(scope="session")
def shared_cluster(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[LocalCluster]:
    """A healthy three-node cluster.  The first members of a group wait for others shorter than three seconds,
    and those of the new protocol hear of changes sooner than after five.  With `--secured WAY` it is a
    SecuredCluster."""
    settings = {
        "group.initial.rebalance.delay.ms": 500,
        "group.consumer.heartbeat.interval.ms": 500,
        "debug.validate": True,
    }
    folder, way = tmp_path_factory.mktemp("cluster"), request.config.getoption("--secured")
    made = SecuredCluster(folder, way, settings) if way else LocalCluster(folder, 3, settings)
    with kept_up(made) as cluster:
        yield cluster


_numbers = itertools.count()


@pytest.fixture
def make_topic(shared_cluster: LocalCluster) -> Callable[..., str]:
    """Creates a fresh topic, replicated three times, and returns its name."""

    def make(partitions: int = 3, **configs: str) -> str:
        name = f"topic-{next(_numbers)}"
        asyncio.run(
            _create(
                shared_cluster.bootstrap,
                name,
                partitions,
                {k.replace("_", "."): v for k, v in configs.items()},
            )
        )
        return name

    return make


async def _create(bootstrap: str, name: str, partitions: int, configs: dict[str, str]) -> None:
    async with Admin(bootstrap) as admin:
        await admin.create_topics([NewTopic(name, partitions, 3, {"min.insync.replicas": "2"} | configs)])


@pytest.fixture
async def own_cluster(tmp_path: Path) -> AsyncIterator[LocalCluster]:
    """A cluster for one test that hurts it, with fault points enabled."""
    settings = {"debug.validate": True}
    cluster = LocalCluster(tmp_path / "cluster", nodes=3, settings=settings, fault_points=True)
    await cluster.up()
    try:
        yield cluster
    finally:
        await cluster.down()


@pytest.fixture(scope="session")
def roomy_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    """Four brokers, the first three of them are the quorum; tests that stop a node start it again."""
    times = {
        "broker.session.timeout.ms": 2500,
        "controller.quorum.election.timeout.ms": 500,
        "broker.heartbeat.interval.ms": 300,
        "replica.lag.time.max.ms": 3000,
    }
    cluster = LocalCluster(tmp_path_factory.mktemp("roomy"), nodes=4, settings=times)
    with started(cluster):
        yield cluster


@pytest.fixture(scope="session")
def conformance_node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    """One node for the tests that look at single requests and answers."""
    settings = {"group.initial.rebalance.delay.ms": 0}
    with kept_up(LocalCluster(tmp_path_factory.mktemp("conformance"), nodes=1, settings=settings)) as cluster:
        yield cluster


@pytest.fixture(scope="session")
def world_without_connection(conformance_node: LocalCluster) -> World:
    """A connection belongs to each test's own loop."""

    async def make() -> World:
        address = conformance_node.node(1).kafka_address
        host, _, port = address.rpartition(":")
        async with Asker(address) as asker:
            topic = {
                "name": "world",
                "num_partitions": 2,
                "replication_factor": 1,
                "assignments": [],
                "configs": [],
            }
            created = await asker.ask(
                ApiKey.CREATE_TOPICS, 7, {"topics": [topic], "timeout": 10_000, "validate_only": False}
            )
            folder = conformance_node.node(1).data_path
            world = World(asker, host, int(port), "world", created.topics[0].topic_id, str(folder))
            answer = await produce(world, "world", records(5))
            assert answer.responses[0].partition_responses[0].error_code == 0
        return world

    return asyncio.run(make())


@pytest.fixture
async def world(conformance_node: LocalCluster, world_without_connection: World) -> AsyncIterator[World]:
    async with Asker(conformance_node.node(1).kafka_address) as asker:
        world_without_connection.asker = asker
        yield world_without_connection


@pytest.fixture
def saw(program: Program, request: pytest.FixtureRequest) -> dict[str, Any]:
    """What a foreign client saw in the case of this test's name; the module says which `program`."""
    return program.saw(case_of(request.node), CASE_TIMEOUT_S)
