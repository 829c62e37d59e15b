"""Settings of nodes that change while they run (KIP-226): planned, applied, kept by snapshots."""

from __future__ import annotations

import pytest
from test_active_controller import Office
from tidegate.controller.active import Plan
from tidegate.controller.broker_settings import CATCH_UP_SETTING, CLEANER_SETTING
from tidegate.controller.model import METADATA_VERSION
from tidegate.controller.node_settings import effective, plan_node_configuration
from tidegate.controller.state import ALL_NODES, ClusterState
from tidegate.proto import controller_pb2 as rpc
from tidegate.proto import metadata_pb2 as pb
from tidegate.wire.errors import ErrorCode

FROM_THE_START = {"min.insync.replicas": "1"}
"""What the controller sets for all nodes when it makes the cluster."""


@pytest.fixture
def office() -> Office:
    office = Office()
    for node_id in (1, 2):
        office.register(node_id)
    return office


def change(
    office: Office, name: str, *, remove: tuple[str, ...] = (), validate_only: bool = False, **entry: object
) -> rpc.TopicResult:
    """One request, planned and applied."""
    request = rpc.AlterConfigsRequest(validate_only=validate_only)
    request.nodes.append(rpc.ConfigChange(name=name, remove=remove, **entry))  # type: ignore[arg-type]
    plans = plan_node_configuration(office.state, request)
    if plans.operations:
        office.carry_out(Plan(plans.operations))
    return plans.results[0]


def of(office: Office, node_id: int) -> dict[str, str]:
    return {name: value for name, value in effective(office.state.node_configs, node_id).items() if name not in FROM_THE_START}


def test_a_nodes_own_setting_comes_before_that_for_all_and_both_can_be_taken_back(office: Office) -> None:
    assert change(office, "", set={CATCH_UP_SETTING: "1000"}).error == ErrorCode.NONE
    assert change(office, "2", set={CATCH_UP_SETTING: "007"}).error == ErrorCode.NONE
    assert (of(office, 1), of(office, 2), of(office, 9)) == (
        {CATCH_UP_SETTING: "1000"}, {CATCH_UP_SETTING: "7"}, {CATCH_UP_SETTING: "1000"}
    )  # fmt: skip
    assert office.state.node_configs[2] == {CATCH_UP_SETTING: "7"}
    change(office, "2", remove=(CATCH_UP_SETTING,))
    change(office, "", set={CLEANER_SETTING: "5"}, replace_all=True)
    assert of(office, 1) == of(office, 2) == {CLEANER_SETTING: "5"}
    change(office, "", remove=(CLEANER_SETTING,))
    assert office.state.node_configs == {ALL_NODES: FROM_THE_START}


def test_a_snapshot_keeps_them_and_who_restores_it_sees_a_change(office: Office) -> None:
    change(office, "", set={CATCH_UP_SETTING: "1000"})
    change(office, "1", set={CLEANER_SETTING: "2000"})
    other = ClusterState()
    before = other.node_configs
    other.restore(office.state.encode())
    assert other.node_configs == office.state.node_configs and other.node_configs is not before
    assert other.state_hash() == office.state.state_hash()


@pytest.mark.parametrize(
    ("name", "wanted", "code", "said"),
    [
        ("", {"set": {"node.id": "4"}}, ErrorCode.INVALID_REQUEST, "Cannot update these configs dynamically: Set(node.id)"),
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
    office: Office, name: str, wanted: dict[str, object], code: ErrorCode, said: str
) -> None:
    result = change(office, name, **wanted)  # type: ignore[arg-type]
    assert result.error == code and said in result.message and office.state.node_configs == {ALL_NODES: FROM_THE_START}


def test_validation_changes_nothing_and_one_node_twice_is_refused(office: Office) -> None:
    assert change(office, "1", set={CATCH_UP_SETTING: "1"}, validate_only=True).error == ErrorCode.NONE
    request = rpc.AlterConfigsRequest(nodes=[rpc.ConfigChange(name="1", set={CATCH_UP_SETTING: "1"})] * 2)
    plans = plan_node_configuration(office.state, request)
    assert office.state.node_configs == {ALL_NODES: FROM_THE_START} and not plans.operations
    assert {result.error for result in plans.results} == {ErrorCode.INVALID_REQUEST}


@pytest.mark.parametrize("level", [1, 2])
def test_a_cluster_at_an_older_level_has_none(office: Office, level: int) -> None:
    """A node of the older version would not know the operation: it must not come into the log."""
    office.state._features = {METADATA_VERSION: level}
    result = change(office, "", set={CATCH_UP_SETTING: "1"})
    assert result.error == ErrorCode.UNSUPPORTED_VERSION
    assert f"metadata.version is {level}, this needs 3: `tidegate features upgrade`" in result.message


@pytest.mark.parametrize(("level", "error"), [(2, ErrorCode.UNSUPPORTED_VERSION), (3, ErrorCode.NONE)])
def test_an_entry_that_came_into_the_log_all_the_same_changes_nothing_below_its_level(
    office: Office, level: int, error: ErrorCode
) -> None:
    """Whoever proposed it may have planned it before; all nodes must make the same of it."""
    office.state._features = {METADATA_VERSION: level}
    entry = pb.ChangeNodeConfig(node_id=ALL_NODES, set=[pb.ConfigEntry(key=CATCH_UP_SETTING, value="1")])
    command = pb.Command(operations=[pb.Operation(change_node_config=entry)]).SerializeToString()
    assert office.state.apply(office.state.index + 1, 1, command).error == error
    assert (CATCH_UP_SETTING in office.state.node_configs[ALL_NODES]) == (error == ErrorCode.NONE)


def test_a_value_that_is_no_number_is_left_out_by_who_reads_it(office: Office) -> None:
    for value in ("much", "²", "9" * 5000, ""):
        entry = pb.ConfigEntry(key=CATCH_UP_SETTING, value=value)
        office.carry_out(Plan([pb.Operation(change_node_config=pb.ChangeNodeConfig(node_id=ALL_NODES, set=[entry]))]))
        assert of(office, 1) == {}


def test_a_node_that_is_forgotten_leaves_no_settings_for_the_next_of_its_id(office: Office) -> None:
    change(office, "2", set={CATCH_UP_SETTING: "1"})
    epoch = office.state.brokers[2].broker_epoch
    office.carry_out(Plan([pb.Operation(fence_broker=pb.FenceBroker(node_id=2, broker_epoch=epoch))]))
    office.carry_out(Plan([pb.Operation(unregister_broker=pb.UnregisterBroker(node_id=2, broker_epoch=epoch))]))
    assert 2 not in office.state.brokers and office.state.node_configs == {ALL_NODES: FROM_THE_START}
