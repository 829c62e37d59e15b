"""Settings of groups and of subscriptions to clients' metrics, as clients set, see and list them."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from opentelemetry.proto.metrics.v1.metrics_pb2 import (
    Gauge,
    Metric,
    MetricsData,
    NumberDataPoint,
    ResourceMetrics,
    ScopeMetrics,
)
from tidegate.processes.local_cluster import LocalCluster
from tidegate.wire.api import ApiKey
from tidegate.wire.compression import Compression, compress
from tidegate.wire.errors import ErrorCode

from .administration_cases import CLIENT_METRICS, GROUP, new_resource
from .protocol_cases import World, fresh

pytestmark = [pytest.mark.cluster, pytest.mark.xdist_group("conformance"), pytest.mark.timeout(120)]

SESSION = "consumer.session.timeout.ms"
DYNAMIC_CLIENT_METRICS, DYNAMIC_GROUP, DEFAULT = 7, 8, 5


async def described(world: World, kind: int, name: str, *keys: str) -> Any:
    resource = {"resource_type": kind, "resource_name": name, "configuration_keys": list(keys) or None}
    answer = await world.ask(
        ApiKey.DESCRIBE_CONFIGS, 4, resources=[resource], include_synonyms=True, include_documentation=False
    )
    return answer.results[0]


async def test_a_group_shows_what_was_set_and_kafkas_defaults(world: World) -> None:
    name = await new_resource(world, GROUP, {SESSION: "50000"})
    seen = {each.name: each for each in (await described(world, GROUP, name)).configs}
    assert len(seen) == 10
    assert (seen[SESSION].value, seen[SESSION].config_source) == ("50000", DYNAMIC_GROUP)
    assert [(each.value, each.source) for each in seen[SESSION].synonyms] == [("50000", DYNAMIC_GROUP)]
    heartbeat = seen["consumer.heartbeat.interval.ms"]
    assert (heartbeat.value, heartbeat.config_source, len(heartbeat.synonyms)) == ("5000", DEFAULT, 1)
    others = (await described(world, GROUP, fresh("never"), SESSION)).configs
    assert [(each.value, each.config_source) for each in others] == [("45000", DEFAULT)]


async def test_a_subscription_shows_what_was_set_without_synonyms_of_defaults(world: World) -> None:
    name = await new_resource(world, CLIENT_METRICS, {"metrics": "org.apache,x", "match": "client_id=a.*"})
    seen = {each.name: each for each in (await described(world, CLIENT_METRICS, name)).configs}
    assert {key: (each.value, each.config_source) for key, each in seen.items()} == {
        "interval.ms": ("300000", DEFAULT),
        "match": ("client_id=a.*", DYNAMIC_CLIENT_METRICS),
        "metrics": ("org.apache,x", DYNAMIC_CLIENT_METRICS),
    }
    assert seen["interval.ms"].synonyms == ()


async def test_what_kafka_refuses_is_refused_with_its_code(world: World) -> None:
    refusals = []
    for kind, name, key, value in (
        (GROUP, "g", "bogus", "1"), (GROUP, "", SESSION, "50000"), (CLIENT_METRICS, "m", "interval.ms", "5"),
        (CLIENT_METRICS, "m", "match", "colour=red"), (64, "m", "interval.ms", "5"),
    ):  # fmt: skip
        configs = [{"name": key, "config_operation": 0, "value": value}]
        resource = {"resource_type": kind, "resource_name": name, "configs": configs}
        answer = await world.ask(
            ApiKey.INCREMENTAL_ALTER_CONFIGS, 1, resources=[resource], validate_only=False
        )
        refusals.append(answer.responses[0].error_code)
    assert refusals == [
        ErrorCode.INVALID_CONFIG, ErrorCode.INVALID_REQUEST, ErrorCode.INVALID_REQUEST,
        ErrorCode.INVALID_CONFIG,
        ErrorCode.INVALID_REQUEST,
    ]  # fmt: skip
    assert (await described(world, GROUP, "")).error_message == "Group name must not be empty"


async def test_all_that_has_settings_is_listed(world: World) -> None:
    group = await new_resource(world, GROUP, {SESSION: "50000"})
    answer = await world.ask(ApiKey.LIST_CONFIG_RESOURCES, 1, resource_types=[])
    seen = {(each.resource_type, each.resource_name) for each in answer.config_resources}
    assert {(2, world.topic), (4, "1"), (8, "1"), (GROUP, group)} <= seen
    answer = await world.ask(ApiKey.LIST_CONFIG_RESOURCES, 1, resource_types=[GROUP, 3])
    assert answer.error_code == ErrorCode.UNSUPPORTED_VERSION
    assert not answer.config_resources


async def test_what_a_client_pushes_is_on_the_page_for_prometheus(
    world: World, conformance_node: LocalCluster
) -> None:
    await new_resource(
        world, CLIENT_METRICS, {"metrics": "org.test", "interval.ms": "100", "match": "client_id=conformance"}
    )
    known = await world.ask(ApiKey.GET_TELEMETRY_SUBSCRIPTIONS, 0, client_instance_id=None)
    assert "org.test" in known.requested_metrics
    announced = await world.ask(
        ApiKey.API_VERSIONS, 4, client_software_name="java", client_software_version="4.1.1"
    )
    served = {each.api_key for each in announced.api_keys}
    assert {ApiKey.GET_TELEMETRY_SUBSCRIPTIONS, ApiKey.PUSH_TELEMETRY} <= served, (
        "as long as there is a subscription"
    )
    gauge = Metric(name="org.test.value", gauge=Gauge(data_points=[NumberDataPoint(as_int=42)]))
    data = MetricsData(resource_metrics=[ResourceMetrics(scope_metrics=[ScopeMetrics(metrics=[gauge])])])
    push = {
        "client_instance_id": known.client_instance_id, "subscription_id": known.subscription_id,
        "terminating": False,
        "compression_type": 4, "metrics": compress(Compression.ZSTD, data.SerializeToString()),
    }  # fmt: skip
    assert (await world.ask(ApiKey.PUSH_TELEMETRY, 0, **push)).error_code == ErrorCode.NONE
    again = await world.ask(ApiKey.PUSH_TELEMETRY, 0, **push | {"subscription_id": known.subscription_id ^ 1})
    assert again.error_code in (ErrorCode.UNKNOWN_SUBSCRIPTION_ID, ErrorCode.THROTTLING_QUOTA_EXCEEDED)
    reader, writer = await asyncio.open_connection(*conformance_node.node(1).metrics_address.split(":"))
    writer.write(b"GET /metrics HTTP/1.0\r\n\r\n")
    page = (await reader.read()).decode()
    writer.close()
    assert 'tidegate_client_org_test_value{client_id="conformance",client_instance_id=' in page
    assert "} 42.0" in page


async def test_only_the_metadata_have_a_quorum_to_describe(world: World) -> None:
    asked = [{"topic_name": world.topic, "partitions": [{"partition_index": 0}]}]
    answer = await world.ask(ApiKey.DESCRIBE_QUORUM, 2, topics=asked)
    (partition,) = answer.topics[0].partitions
    assert partition.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert answer.error_code == 0


# ---- loggers -----------------------------------------------------------------------------------------------

BROKER_LOGGER = 8
SET, DELETE, APPEND = 0, 1, 2
MODULE, PACKAGE = "tidegate.node.handlers.settings.broker_loggers", "tidegate.node.handlers"


async def change_logger(
    world: World, name: str, operation: int, value: str | None, *, node: str = "1"
) -> tuple[int, str | None]:
    configs = [{"name": name, "config_operation": operation, "value": value}]
    resource = {"resource_type": BROKER_LOGGER, "resource_name": node, "configs": configs}
    answer = await world.ask(ApiKey.INCREMENTAL_ALTER_CONFIGS, 1, resources=[resource], validate_only=False)
    return answer.responses[0].error_code, answer.responses[0].error_message


async def levels(world: World) -> dict[str, str]:
    found = (await described(world, BROKER_LOGGER, "1")).configs
    assert {(each.config_source, each.read_only, each.config_type, each.synonyms) for each in found} == {
        (6, False, 2, ())
    }
    return {each.name: each.value for each in found}


async def test_the_levels_of_loggers_change_while_the_node_runs(world: World) -> None:
    before = await levels(world)
    assert {"root", PACKAGE, MODULE} <= before.keys()
    assert await change_logger(world, PACKAGE, SET, "TRACE") == (0, None)
    assert (await levels(world))[MODULE] == "TRACE", "of all that is below it"
    assert await change_logger(world, MODULE, SET, "WARN") == (0, None)
    seen = await levels(world)
    assert (seen[MODULE], seen[PACKAGE], seen["root"]) == ("WARN", "TRACE", before["root"])
    for name in (MODULE, PACKAGE):
        assert await change_logger(world, name, DELETE, None) == (0, None)
    assert await levels(world) == before


async def test_a_level_that_cannot_be_is_refused_in_kafkas_words(world: World) -> None:
    before = await levels(world)
    assert await change_logger(world, "root", SET, "LOUD") == (
        ErrorCode.INVALID_CONFIG,
        "Cannot set the log level of root to LOUD as it is not a supported log level. "
        "Valid log levels are DEBUG, ERROR, FATAL, INFO, TRACE, WARN",
    )
    assert await change_logger(world, "bogus", SET, "INFO") == (
        ErrorCode.INVALID_CONFIG,
        "Logger bogus does not exist!",
    )
    assert await change_logger(world, "bogus", DELETE, None) == (
        ErrorCode.INVALID_CONFIG,
        "Logger bogus does not exist!",
    )
    assert await change_logger(world, "root", DELETE, None) == (
        ErrorCode.INVALID_REQUEST, "Removing the log level of the root logger is not allowed",
    )  # fmt: skip
    refused = ErrorCode.INVALID_REQUEST, "APPEND operation is not allowed for the BROKER_LOGGER resource"
    assert await change_logger(world, "root", APPEND, "INFO") == refused
    refused = ErrorCode.INVALID_REQUEST, "Unexpected broker id, expected 1 but received 7"
    assert await change_logger(world, "root", SET, "INFO", node="7") == refused
    assert (await described(world, BROKER_LOGGER, "")).error_message == "Broker id must not be empty"
    assert await levels(world) == before
