"""Settings of groups and of subscriptions to clients' metrics: planned, checked in Kafka's words, applied,
kept by snapshots."""

from __future__ import annotations

import pytest
from tidegate.controller.planning.plan import Plan
from tidegate.controller.planning.settings import resource_configs
from tidegate.controller.planning.settings.resource_configs import plan_resource_configuration
from tidegate.controller.state.cluster_state import ClusterState
from tidegate.controller.state.model import METADATA_VERSION
from tidegate.controller.state.resource_settings import GROUP_LIMITS, ResourceType, matching_patterns
from tidegate.proto import controller_pb2 as rpc
from tidegate.proto import metadata_pb2 as pb
from tidegate.wire.errors import ErrorCode, KafkaError

from .test_planner import PlannerCluster

GROUP, METRICS = int(ResourceType.GROUP), int(ResourceType.CLIENT_METRICS)
SESSION, HEARTBEAT = "consumer.session.timeout.ms", "consumer.heartbeat.interval.ms"


@pytest.fixture
def controller() -> PlannerCluster:
    return PlannerCluster()


def change(
    controller: PlannerCluster, kind: int, name: str, *, validate_only: bool = False, **entry: object
) -> rpc.TopicResult:
    """One request, planned and applied."""
    request = rpc.AlterConfigsRequest(validate_only=validate_only)
    wanted = rpc.ConfigChange(name=name, **entry)  # type: ignore[arg-type]
    request.resources.append(rpc.ResourceChange(resource_type=kind, change=wanted))
    plans = plan_resource_configuration(controller.state, GROUP_LIMITS, request)
    if plans.operations:
        controller.carry_out(Plan(plans.operations))
    return plans.results[0]


def test_settings_are_set_changed_and_taken_back(controller: PlannerCluster) -> None:
    assert change(controller, GROUP, "g", set={SESSION: "50000", HEARTBEAT: "6000"}).error == ErrorCode.NONE
    assert change(controller, GROUP, "h", set={SESSION: "60000"}).error == ErrorCode.NONE
    assert change(controller, GROUP, "g", set={SESSION: "45000"}, remove=[HEARTBEAT]).error == ErrorCode.NONE
    assert controller.state.resource_configs == {
        (GROUP, "g"): {SESSION: "45000"},
        (GROUP, "h"): {SESSION: "60000"},
    }
    assert change(controller, GROUP, "h", set={HEARTBEAT: "7000"}, replace_all=True).error == ErrorCode.NONE
    assert controller.state.resource_configs[GROUP, "h"] == {HEARTBEAT: "7000"}
    assert change(controller, GROUP, "g", remove=[SESSION, HEARTBEAT, "never.set"]).error == ErrorCode.NONE
    assert list(controller.state.resource_configs) == [(GROUP, "h")]


def test_a_group_and_a_subscription_of_one_name_are_two(controller: PlannerCluster) -> None:
    change(controller, GROUP, "x", set={SESSION: "50000"})
    change(controller, METRICS, "x", set={"metrics": "org.apache", "match": "client_id=a.*"})
    change(controller, METRICS, "x", append={"metrics": "b,org.apache"}, subtract={"match": "client_id=a.*"})
    assert controller.state.resource_configs == {
        (GROUP, "x"): {SESSION: "50000"},
        (METRICS, "x"): {"metrics": "org.apache,b", "match": ""},
    }


def test_a_snapshot_keeps_them(controller: PlannerCluster) -> None:
    change(controller, METRICS, "b", set={"interval.ms": "1000"})
    change(controller, GROUP, "a", set={SESSION: "50000"})
    other = ClusterState()
    other.restore(controller.state.encode())
    assert other.resource_configs == controller.state.resource_configs
    assert other.state_hash() == controller.state.state_hash()


@pytest.mark.parametrize(
    ("kind", "name", "wanted", "code", "said"),
    [
        (GROUP, "g", {"set": {"bogus": "1"}}, ErrorCode.INVALID_CONFIG, "Unknown group config name: bogus"),
        (GROUP, "", {"set": {SESSION: "50000"}}, ErrorCode.INVALID_REQUEST,
            "Default group resources are not allowed."),
        (GROUP, "g", {"set": {SESSION: "1"}}, ErrorCode.INVALID_CONFIG,
         f"{SESSION} must be greater than or equal to group.consumer.min.session.timeout.ms"),
        (GROUP, "g", {"set": {SESSION: "70000"}}, ErrorCode.INVALID_CONFIG,
         f"{SESSION} must be less than or equal to group.consumer.max.session.timeout.ms"),
        (GROUP, "g", {"set": {SESSION: "0"}}, ErrorCode.INVALID_CONFIG,
         f"Invalid value 0 for configuration {SESSION}: Value must be at least 1"),
        (GROUP, "g", {"set": {SESSION: "999999999999"}}, ErrorCode.INVALID_CONFIG,
            "Not a number of type INT"),
        (GROUP, "g", {"set": {SESSION: "9" * 5000}}, ErrorCode.INVALID_CONFIG, "Not a number of type INT"),
        (GROUP, "g", {"set": {SESSION: ""}}, ErrorCode.INVALID_CONFIG,
         f"Invalid value  for configuration {SESSION}: Not a number of type INT"),
        (GROUP, "g", {"append": {SESSION: "1"}}, ErrorCode.INVALID_CONFIG, "because its type is not LIST"),
        (GROUP, "g", {"set": {"streams.num.standby.replicas": "100"}}, ErrorCode.INVALID_CONFIG,
         "streams.num.standby.replicas must be less than or equal to group.streams.max.standby.replicas"),
        (GROUP, "g", {"set": {"share.isolation.level": "foo"}}, ErrorCode.INVALID_CONFIG,
         "String must be one of: read_committed, read_uncommitted"),
        (GROUP, "g", {"set": {"share.auto.offset.reset": "foo"}}, ErrorCode.INVALID_CONFIG,
            "by_duration:<PnDTnHnMn.nS>"),
        (METRICS, "", {"set": {"interval.ms": "1000"}}, ErrorCode.INVALID_REQUEST,
            "Default client-metrics resources"),
        (METRICS, "m", {"set": {"bogus": "1"}}, ErrorCode.INVALID_REQUEST,
            "Unknown client metrics configuration: bogus"),
        (METRICS, "m", {"set": {"interval.ms": "5"}}, ErrorCode.INVALID_REQUEST,
         "Invalid value 5 for interval.ms, interval must be between 100 and 3600000 (1 hour)"),
        (METRICS, "m", {"set": {"interval.ms": "x"}}, ErrorCode.INVALID_CONFIG, "Not a number of type INT"),
        (METRICS, "m", {"set": {"match": "foo"}}, ErrorCode.INVALID_CONFIG,
            "Illegal client matching pattern: foo"),
        (METRICS, "m", {"set": {"match": "client_id=*"}}, ErrorCode.INVALID_CONFIG,
            "Illegal client matching pattern"),
        (METRICS, "m", {"set": {"match": "client_id=" + "(" * 5000}}, ErrorCode.INVALID_CONFIG,
            "Illegal client matching"),
        (77, "m", {"set": {"interval.ms": "1000"}}, ErrorCode.INVALID_REQUEST, "unknown type of resource 77"),
    ],
)  # fmt: skip
def test_what_cannot_be_is_refused_and_changes_nothing(
    controller: PlannerCluster, kind: int, name: str, wanted: dict[str, object], code: ErrorCode, said: str
) -> None:
    result = change(controller, kind, name, **wanted)  # type: ignore[arg-type]
    assert result.error == code
    assert said in result.message
    assert not controller.state.resource_configs


def test_settings_that_do_not_go_together_are_refused(controller: PlannerCluster) -> None:
    limits = {**GROUP_LIMITS, SESSION: (1, 60_000), HEARTBEAT: (1, 60_000)}
    request = rpc.AlterConfigsRequest()
    request.resources.add(resource_type=GROUP).change.MergeFrom(
        rpc.ConfigChange(name="g", set={SESSION: "4000"})
    )
    (result,) = plan_resource_configuration(controller.state, limits, request).results
    assert result.error == ErrorCode.INVALID_CONFIG
    assert result.message == f"{SESSION} must be greater than {HEARTBEAT}"


@pytest.mark.parametrize("value", ["earliest", "latest", "by_duration:PT1H", "by_duration:P1DT2H3.5S"])
def test_a_share_group_may_begin_where_kafka_lets_it(controller: PlannerCluster, value: str) -> None:
    assert change(controller, GROUP, "g", set={"share.auto.offset.reset": value}).error == ErrorCode.NONE


def test_validation_changes_nothing_and_one_resource_twice_is_refused(controller: PlannerCluster) -> None:
    assert change(controller, GROUP, "g", set={SESSION: "50000"}, validate_only=True).error == ErrorCode.NONE
    one = rpc.ResourceChange(resource_type=GROUP, change=rpc.ConfigChange(name="g", set={SESSION: "50000"}))
    plans = plan_resource_configuration(
        controller.state, GROUP_LIMITS, rpc.AlterConfigsRequest(resources=[one, one])
    )
    assert not controller.state.resource_configs
    assert not plans.operations
    assert {result.error for result in plans.results} == {ErrorCode.INVALID_REQUEST}


def test_there_are_no_more_resources_than_memory_is_meant_for(
    controller: PlannerCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(resource_configs, "RESOURCES_MAX", 2)
    request = rpc.AlterConfigsRequest()
    for name in ("a", "b", "c"):
        request.resources.add(resource_type=GROUP).change.MergeFrom(
            rpc.ConfigChange(name=name, set={SESSION: "50000"})
        )
    errors = [
        result.error
        for result in plan_resource_configuration(controller.state, GROUP_LIMITS, request).results
    ]
    assert errors == [ErrorCode.NONE, ErrorCode.NONE, ErrorCode.POLICY_VIOLATION]
    change(controller, GROUP, "a", set={SESSION: "50000"})
    change(controller, GROUP, "b", set={SESSION: "50000"})
    assert change(controller, GROUP, "c", set={SESSION: "50000"}).error == ErrorCode.POLICY_VIOLATION
    assert change(controller, GROUP, "a", set={SESSION: "55000"}).error == ErrorCode.NONE
    assert change(controller, GROUP, "n" * 1025, set={SESSION: "50000"}).error == ErrorCode.INVALID_REQUEST


def test_a_cluster_at_an_older_level_has_none(controller: PlannerCluster) -> None:
    controller.state._features = {METADATA_VERSION: 3}
    assert change(controller, GROUP, "g", set={SESSION: "50000"}).error == ErrorCode.UNSUPPORTED_VERSION
    entry = pb.ChangeResourceConfig(
        resource_type=GROUP, name="g", set=[pb.ConfigEntry(key=SESSION, value="50000")]
    )
    command = pb.Command(operations=[pb.Operation(change_resource_config=entry)]).SerializeToString()
    assert (
        controller.state.apply(controller.state.index + 1, 1, command).error == ErrorCode.UNSUPPORTED_VERSION
    )
    assert not controller.state.resource_configs


def test_patterns_choose_clients_by_what_they_say_of_themselves() -> None:
    patterns = matching_patterns("client_id=a.*, client_software_name = apache-.*")
    assert patterns["client_id"].fits("ab")
    assert not patterns["client_id"].fits("ba")
    assert not patterns["client_id"].fits("a\ud800")
    assert not matching_patterns("client_id=(a*)*b")["client_id"].fits("a" * 50_000), "in no time"
    assert set(patterns) == {"client_id", "client_software_name"}
    with pytest.raises(KafkaError):
        matching_patterns("colour=red")
