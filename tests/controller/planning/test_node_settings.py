"""Settings of nodes that change while they run (KIP-226): planned, applied, kept by snapshots."""

from __future__ import annotations

import ast

import pytest
from tidegate.controller.planning.plan import Plan
from tidegate.controller.planning.settings.node_settings import effective, plan_node_configuration
from tidegate.controller.state import model
from tidegate.controller.state.broker_settings import BROKER_SETTINGS, CATCH_UP_SETTING, CLEANER_SETTING
from tidegate.controller.state.cluster_state import ClusterState
from tidegate.controller.state.model import ALL_NODES, METADATA_VERSION
from tidegate.controller.state.topic_defaults import CONTROLLERS_DEFAULTS
from tidegate.proto import controller_pb2 as rpc
from tidegate.proto import metadata_pb2 as pb
from tidegate.storage.topic_config import TOPIC_CONFIGS
from tidegate.tests.architecture.source import parse, product_sources
from tidegate.wire.errors import ErrorCode

from .test_planner import PlannerCluster

FROM_THE_START = {"min.insync.replicas": "1"}
"""What the controller sets for all nodes when it makes the cluster."""


@pytest.fixture
def controller() -> PlannerCluster:
    controller = PlannerCluster()
    for node_id in (1, 2):
        controller.register(node_id)
    return controller


def change(
    controller: PlannerCluster,
    name: str,
    *,
    remove: tuple[str, ...] = (),
    validate_only: bool = False,
    **entry: object,
) -> rpc.TopicResult:
    """One request, planned and applied."""
    request = rpc.AlterConfigsRequest(validate_only=validate_only)
    request.nodes.append(rpc.ConfigChange(name=name, remove=remove, **entry))  # type: ignore[arg-type]
    plans = plan_node_configuration(controller.state, request)
    if plans.operations:
        controller.carry_out(Plan(plans.operations))
    return plans.results[0]


def of(controller: PlannerCluster, node_id: int) -> dict[str, str]:
    return {
        name: value
        for name, value in effective(controller.state.node_configs, node_id).items()
        if name not in FROM_THE_START
    }


def test_a_nodes_own_setting_comes_before_the_one_for_all_nodes(controller: PlannerCluster) -> None:
    assert change(controller, "", set={CATCH_UP_SETTING: "1000"}).error == ErrorCode.NONE
    assert change(controller, "2", set={CATCH_UP_SETTING: "007"}).error == ErrorCode.NONE
    assert (of(controller, 1), of(controller, 2), of(controller, 9)) == (
        {CATCH_UP_SETTING: "1000"}, {CATCH_UP_SETTING: "7"}, {CATCH_UP_SETTING: "1000"}
    )  # fmt: skip
    assert controller.state.node_configs[2] == {CATCH_UP_SETTING: "7"}
    change(controller, "2", remove=(CATCH_UP_SETTING,))
    change(controller, "", set={CLEANER_SETTING: "5"}, replace_all=True)
    assert of(controller, 1) == of(controller, 2) == {CLEANER_SETTING: "5"}
    change(controller, "", remove=(CLEANER_SETTING,))
    assert controller.state.node_configs == {ALL_NODES: FROM_THE_START}


def test_a_snapshot_keeps_node_settings_and_restoring_it_reports_them(controller: PlannerCluster) -> None:
    change(controller, "", set={CATCH_UP_SETTING: "1000"})
    change(controller, "1", set={CLEANER_SETTING: "2000"})
    other = ClusterState()
    before = other.node_configs
    other.restore(controller.state.encode())
    assert other.node_configs == controller.state.node_configs
    assert other.node_configs is not before
    assert other.state_hash() == controller.state.state_hash()


@pytest.mark.parametrize(
    ("name", "wanted", "code", "said"),
    [
        (
            "",
            {"set": {"node.id": "4"}},
            ErrorCode.INVALID_REQUEST,
            "Cannot update these configs dynamically: Set(node.id)",
        ),
        ("", {"set": {CATCH_UP_SETTING: "-1"}}, ErrorCode.INVALID_REQUEST, "Value must be at least 0"),
        ("", {"set": {CATCH_UP_SETTING: "1e3"}}, ErrorCode.INVALID_REQUEST, "Not a number of type LONG"),
        ("", {"set": {CATCH_UP_SETTING: "9" * 30}}, ErrorCode.INVALID_REQUEST, "Value must be no more than"),
        ("", {"set": {CATCH_UP_SETTING: "9" * 5000}}, ErrorCode.INVALID_REQUEST, "Not a number of type LONG"),
        ("9" * 5000, {"set": {CATCH_UP_SETTING: "1"}}, ErrorCode.INVALID_REQUEST, "there is no node"),
        ("", {"append": {CATCH_UP_SETTING: "1"}}, ErrorCode.INVALID_REQUEST, "it is no list"),
        ("7", {"set": {CATCH_UP_SETTING: "1"}}, ErrorCode.INVALID_REQUEST, "there is no node '7'"),
        ("one", {"set": {CATCH_UP_SETTING: "1"}}, ErrorCode.INVALID_REQUEST, "there is no node 'one'"),
    ],
)
def test_what_cannot_be_is_refused_and_changes_nothing(
    controller: PlannerCluster, name: str, wanted: dict[str, object], code: ErrorCode, said: str
) -> None:
    result = change(controller, name, **wanted)  # type: ignore[arg-type]
    assert result.error == code
    assert said in result.message
    assert controller.state.node_configs == {ALL_NODES: FROM_THE_START}


def test_validation_changes_nothing_and_one_node_twice_is_refused(controller: PlannerCluster) -> None:
    assert change(controller, "1", set={CATCH_UP_SETTING: "1"}, validate_only=True).error == ErrorCode.NONE
    request = rpc.AlterConfigsRequest(nodes=[rpc.ConfigChange(name="1", set={CATCH_UP_SETTING: "1"})] * 2)
    plans = plan_node_configuration(controller.state, request)
    assert controller.state.node_configs == {ALL_NODES: FROM_THE_START}
    assert not plans.operations
    assert {result.error for result in plans.results} == {ErrorCode.INVALID_REQUEST}


@pytest.mark.parametrize("level", [1, 2])
def test_a_cluster_at_an_older_level_has_none(controller: PlannerCluster, level: int) -> None:
    """A node of the older version would not know the operation: it must not come into the log."""
    controller.state._features = {METADATA_VERSION: level}
    result = change(controller, "", set={CATCH_UP_SETTING: "1"})
    assert result.error == ErrorCode.UNSUPPORTED_VERSION
    assert f"metadata.version is {level}, this needs 3: `tidegate features upgrade`" in result.message


@pytest.mark.parametrize(("level", "error"), [(2, ErrorCode.UNSUPPORTED_VERSION), (3, ErrorCode.NONE)])
def test_an_entry_below_its_metadata_level_changes_nothing(
    controller: PlannerCluster, level: int, error: ErrorCode
) -> None:
    """The controller may have planned it before; all nodes must apply it in the same way."""
    controller.state._features = {METADATA_VERSION: level}
    entry = pb.ChangeNodeConfig(node_id=ALL_NODES, set=[pb.ConfigEntry(key=CATCH_UP_SETTING, value="1")])
    command = pb.Command(operations=[pb.Operation(change_node_config=entry)]).SerializeToString()
    assert controller.state.apply(controller.state.index + 1, 1, command).error == error
    assert (CATCH_UP_SETTING in controller.state.node_configs[ALL_NODES]) == (error == ErrorCode.NONE)


def test_a_value_that_is_no_number_is_left_out(controller: PlannerCluster) -> None:
    for value in ("much", "²", "9" * 5000, ""):
        entry = pb.ConfigEntry(key=CATCH_UP_SETTING, value=value)
        controller.carry_out(
            Plan([pb.Operation(change_node_config=pb.ChangeNodeConfig(node_id=ALL_NODES, set=[entry]))])
        )
        assert of(controller, 1) == {}


def test_an_unregistered_node_leaves_no_settings_behind(controller: PlannerCluster) -> None:
    change(controller, "2", set={CATCH_UP_SETTING: "1"})
    epoch = controller.state.brokers[2].broker_epoch
    controller.carry_out(Plan([pb.Operation(fence_broker=pb.FenceBroker(node_id=2, broker_epoch=epoch))]))
    controller.carry_out(
        Plan([pb.Operation(unregister_broker=pb.UnregisterBroker(node_id=2, broker_epoch=epoch))])
    )
    assert 2 not in controller.state.brokers
    assert controller.state.node_configs == {ALL_NODES: FROM_THE_START}


def read_by_the_controller() -> dict[str, str]:
    """Topic setting -> a module of controller/ that reads it from a topic's configuration."""
    found: dict[str, str] = {}
    for path, tree in parse(product_sources()):
        if not path.startswith("controller/"):
            continue
        for node in ast.walk(tree):
            match node:
                case (
                    ast.Call(func=ast.Attribute(attr="_value"), args=[key, *_])
                    | ast.Call(
                        func=ast.Attribute(attr="get", value=ast.Attribute(attr="config")), args=[key, *_]
                    )
                    | ast.Subscript(value=ast.Attribute(attr="config"), slice=key)
                ):
                    pass
                case _:
                    continue
            name = key.value if isinstance(key, ast.Constant) else vars(model).get(ast.unparse(key))
            if name in TOPIC_CONFIGS:
                found[str(name)] = path
    return found


def test_what_the_controller_reads_of_topics_has_one_default_for_all_brokers() -> None:
    """Else the controller acts on its own default where an operator has set another one for the cluster."""
    read = read_by_the_controller()
    assert read.keys() > set(CONTROLLERS_DEFAULTS)
    for key, path in read.items():
        setting = BROKER_SETTINGS.get(TOPIC_CONFIGS[key].broker_name)
        if setting is not None:
            assert key in CONTROLLERS_DEFAULTS, f"{path} reads {key}: a row of CONTROLLERS_DEFAULTS"
            assert setting.of_cluster, f"{path} reads {key}: its broker_name belongs into _OF_CLUSTER"
