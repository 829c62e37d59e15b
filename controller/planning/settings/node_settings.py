"""Plans of AlterConfigs for nodes: changes of the settings that clients set while the nodes run.  Pure.

The metadata have them for all nodes (no name), or for one.  A node's own value comes before the value for all
nodes, and that before the value in the node's file (KIP-226); so the setting survives a restart, and new
nodes get it.  The table of these settings: `state/broker_settings.py`; what topics inherit of them:
`state/topic_defaults.py`; the settings of a node's file: `node/settings/definitions.py`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Final

from ....proto import controller_pb2 as rpc
from ....proto import metadata_pb2 as pb
from ....storage.topic_config import ConfigType, parsed_topic_config, split_list
from ....wire.errors import ErrorCode, KafkaError
from ...state.broker_settings import (
    BROKER_SETTINGS,
    CATCH_UP_SETTING,
    CLEANER_SETTING,
    parsed_setting,
)
from ...state.cluster_state import ClusterState
from ...state.features import require_level, require_setting_levels
from ...state.model import ALL_NODES, MIN_IN_SYNC_REPLICAS_CONFIG, NODE_SETTINGS_LEVEL, RESOURCES_LEVEL
from ...state.topic_defaults import inherited
from ..topics import TopicPlan, TopicPlans
from .topic_settings import check_stays_compacted, edited

LATER_NODE_SETTINGS: Final[Mapping[str, int]] = {}
"""The level of each setting of nodes that came after RESOURCES_LEVEL; a test demands a row of a new one."""

NODE_SETTING_LEVELS: Final[Mapping[str, int]] = {
    name: NODE_SETTINGS_LEVEL
    if name in (CATCH_UP_SETTING, CLEANER_SETTING)
    else LATER_NODE_SETTINGS.get(name, RESOURCES_LEVEL)
    for name in BROKER_SETTINGS
}
_DIGITS_MAX: Final = 19


def effective(node_configs: Mapping[int, Mapping[str, str]], node_id: int) -> dict[str, str]:
    """A node's settings in the metadata; for the others its file counts.  Leaves out a value that this
    version cannot read."""
    merged = {**node_configs.get(ALL_NODES, {}), **node_configs.get(node_id, {})}
    return {
        name: value for name, value in merged.items() if name in BROKER_SETTINGS and _is_readable(name, value)
    }


def _is_readable(name: str, value: str) -> bool:
    try:
        parsed_setting(name, value)
    except ValueError:
        return False
    return True


def _is_number(text: str) -> bool:
    """Digits, and no more of them than a number of 64 bits has: longer ones cost time, and Python refuses
    some."""
    return text.isascii() and text.isdigit() and len(text) <= _DIGITS_MAX


def plan_node_configuration(state: ClusterState, request: rpc.AlterConfigsRequest) -> TopicPlans:
    """A plan for each entry of `request.nodes`; the result's name is the node's id, or empty for all."""
    plans, names = TopicPlans(), Counter(change.name for change in request.nodes)
    for change in request.nodes:
        result = rpc.TopicResult(name=change.name)
        operation = None
        try:
            if names[change.name] > 1:
                raise KafkaError(ErrorCode.INVALID_REQUEST, "this node is in the request more than once")
            operation = _plan(state, change)
        except KafkaError as error:
            result.error, result.message = int(error.code), error.message
        plans.topics.append(TopicPlan(result, None if request.validate_only else operation))
    return plans


def _plan(state: ClusterState, change: rpc.ConfigChange) -> pb.Operation | None:
    require_level(state.features, NODE_SETTINGS_LEVEL)
    node_id = _node_id(state, change.name)
    present = state.node_configs.get(node_id, {})
    future = edited(present, change, _list_default)
    if change.replace_all and node_id == ALL_NODES and MIN_IN_SYNC_REPLICAS_CONFIG in present:
        future.setdefault(MIN_IN_SYNC_REPLICAS_CONFIG, present[MIN_IN_SYNC_REPLICAS_CONFIG])
    for name in [name for name in future if present.get(name) != future[name]]:
        require_setting_levels(state.features, {name: future[name]}, NODE_SETTING_LEVELS)
        try:
            future[name] = parsed_setting(name, future[name])
        except ValueError as error:
            raise KafkaError(ErrorCode.INVALID_REQUEST, str(error)) from None
    _check(state, node_id, present, future)
    if future == present:
        return None
    return pb.Operation(
        change_node_config=pb.ChangeNodeConfig(
            node_id=node_id,
            set=[
                pb.ConfigEntry(key=key, value=future[key])
                for key in sorted(future)
                if present.get(key) != future[key]
            ],
            remove=sorted(present.keys() - future.keys()),
        )
    )


def _list_default(name: str, _verb: str) -> str:
    """What a list has without a value.  Raises INVALID_REQUEST when it is no list."""
    setting = BROKER_SETTINGS.get(name)
    if setting is None or setting.key.type is not ConfigType.LIST:
        raise KafkaError(
            ErrorCode.INVALID_REQUEST, f"cannot append to {name} or subtract from it: it is no list"
        )
    return setting.default or ""


def _check(state: ClusterState, node_id: int, present: Mapping[str, str], future: Mapping[str, str]) -> None:
    """Raises KafkaError for what each setting may be alone, but not here, or not all together."""
    if node_id != ALL_NODES:
        for name in future:
            if (
                BROKER_SETTINGS.get(name)
                and BROKER_SETTINGS[name].of_cluster
                and present.get(name) != future[name]
            ):
                code = (
                    ErrorCode.INVALID_CONFIG
                    if name == MIN_IN_SYNC_REPLICAS_CONFIG
                    else ErrorCode.INVALID_REQUEST
                )
                raise KafkaError(code, f"{name} is one for all brokers: change it for all (no broker id)")
    elif MIN_IN_SYNC_REPLICAS_CONFIG in present and MIN_IN_SYNC_REPLICAS_CONFIG not in future:
        message = f"the cluster's {MIN_IN_SYNC_REPLICAS_CONFIG} can be changed, but not removed (KIP-966)"
        raise KafkaError(ErrorCode.INVALID_CONFIG, message)
    others = {number: config for number, config in state.node_configs.items() if number != node_id}
    try:
        after = parsed_topic_config(inherited({**others, node_id: future}, node_id))
    except KafkaError as error:
        raise KafkaError(ErrorCode.INVALID_REQUEST, error.message) from None
    _check_local_retention(after)
    before = inherited(state.node_configs, node_id)
    if "compact" in split_list(before.get("cleanup.policy", "")):
        for topic in state.topics.values():
            if not topic.internal and "cleanup.policy" not in topic.config:
                check_stays_compacted(topic.name, before, after)


def _check_local_retention(config: Mapping[str, str]) -> None:
    """Kafka's rule, although local retention has no effect in Tidegate."""
    for unit, unlimited in (("bytes", -1), ("ms", 7 * 86_400_000)):
        local, total = (
            int(config.get(f"local.retention.{unit}", -2)),
            int(config.get(f"retention.{unit}", unlimited)),
        )
        if local != -2 and total >= 0 and not 0 <= local <= total:
            message = f"log.local.retention.{unit} = {local} must not be above log.retention.{unit} = {total}"
            raise KafkaError(ErrorCode.INVALID_REQUEST, message)


def _node_id(state: ClusterState, name: str) -> int:
    if not name:
        return ALL_NODES
    if not _is_number(name) or int(name) not in state.brokers:
        raise KafkaError(
            ErrorCode.INVALID_REQUEST,
            f"there is no node {name!r}: a node's id is wanted, or nothing for all nodes",
        )
    return int(name)
