"""Every field of a broker's registration decides something, up to the snapshot: none is lost on its way."""

from __future__ import annotations

import ast
from pathlib import Path
from typing import Any

import pytest
from tidegate.controller.planning.brokers.registration import plan_registration
from tidegate.controller.state.features import SUPPORTED, as_messages
from tidegate.node import node
from tidegate.proto import controller_pb2 as rpc
from tidegate.wire.errors import ErrorCode, KafkaError

from ..controller_cluster import registration
from .test_planner import SAFE, PlannerCluster

FIELDS = set(rpc.RegisterBrokerRequest.DESCRIPTOR.fields_by_name)
OTHER: dict[str, Any] = {
    "node_id": 9,
    "incarnation": "third",
    "cluster_id": "red",
    "rack": "another",
    "kafka_host": "another",
    "kafka_port": 9,
    "grpc_host": "another",
    "grpc_port": 9,
    "clean_shutdown_broker_epoch": -1,
    "directory_id": "another",
    "supported_features": [*as_messages(SUPPORTED), rpc.FeatureRange(name="new", max_level=1)],
    "listeners": [rpc.ListenerEndpoint(name="EXTERNAL", host="another", port=9)],
    "offline_replicas": "t-0",
    "damaged_replicas": "t-0",
}


def outcome(cluster: PlannerCluster, request: rpc.RegisterBrokerRequest) -> bytes | ErrorCode:
    """The state after the registration, or its refusal."""
    state = cluster.state.copy()
    try:
        plan = plan_registration(state, cluster.planner.sessions, request)
    except KafkaError as error:
        return error.code
    for command in plan.commands(1):
        assert state.apply(state.index + 1, 1, command.SerializeToString()).ok
    return state.encode()


@pytest.mark.parametrize("name", sorted(FIELDS | OTHER.keys()))
def test_another_value_of_a_field_has_another_outcome(name: str) -> None:
    """Broker 1, the last in the ISR of "t", comes back after a clean stop."""
    assert name in FIELDS & OTHER.keys()
    controller = PlannerCluster(disks={1: "disk"})
    controller.join(1, 2, 3)
    controller.topic(**SAFE)
    controller.lose(2, 3)
    request = registration(1, "second", directory_id="disk")
    request.clean_shutdown_broker_epoch = controller.state.brokers[1].broker_epoch
    changed = type(request).FromString(request.SerializeToString())
    changed.ClearField(name)  # type: ignore[arg-type]
    value = OTHER[name]
    if value == "t-0":
        topic_id = controller.state.topics["t"].topic_id.bytes
        value = [rpc.ReplicasOfTopic(topic_id=topic_id, partitions=[0])]
    changed.MergeFrom(rpc.RegisterBrokerRequest(**{name: value}))
    assert outcome(controller, changed) != outcome(controller, request)


def test_the_node_says_every_field() -> None:
    calls = [
        each for each in ast.walk(ast.parse(Path(node.__file__).read_text())) if isinstance(each, ast.Call)
    ]
    (request,) = [call for call in calls if ast.unparse(call.func) == "pb.RegisterBrokerRequest"]
    assert {keyword.arg for keyword in request.keywords} == FIELDS
