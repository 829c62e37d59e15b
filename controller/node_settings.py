"""Settings of nodes that change while they run: which there are, and what a request makes of them.  Pure.

They are part of the metadata: for all nodes (no name), or for one.  A node takes its own before those for all, and those before
what its file says (KIP-226); so a restart, or a new node, finds what holds.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Final

from ..proto import controller_pb2 as rpc
from ..proto import metadata_pb2 as pb
from ..wire.errors import ErrorCode, KafkaError
from .features import require_level, require_setting_levels
from .model import NODE_SETTINGS_LEVEL
from .state import ALL_NODES, ClusterState
from .topics import TopicPlan, TopicPlans

CATCH_UP_SETTING: Final = "replica.catch.up.max.bytes.per.second"
CLEANER_SETTING: Final = "log.cleaner.io.max.bytes.per.second"
DYNAMIC_SETTINGS: Final = frozenset({CATCH_UP_SETTING, CLEANER_SETTING})
"""Each is a number of bytes a second; 0: no limit."""
_BYTES_MAX: Final = 2**63 - 1
_DIGITS_MAX: Final = 19


def check_setting(name: str, value: str) -> int:
    """The value as a number.  Raises INVALID_CONFIG."""
    if name not in DYNAMIC_SETTINGS:
        known = ", ".join(sorted(DYNAMIC_SETTINGS))
        message = f"{name} cannot be changed while nodes run, it is in their files; what can be: {known}"
        raise KafkaError(ErrorCode.INVALID_CONFIG, message)
    if not _is_number(value) or int(value) > _BYTES_MAX:
        message = f"{name} = {value!r}: a whole number of bytes a second is wanted, 0 for no limit"
        raise KafkaError(ErrorCode.INVALID_CONFIG, message)
    return int(value)


def effective(node_configs: Mapping[int, Mapping[str, str]], node_id: int) -> dict[str, int]:
    """What holds for a node; what is missing is in its file.  A value that this version cannot read is left out."""
    merged = {**node_configs.get(ALL_NODES, {}), **node_configs.get(node_id, {})}
    return {name: int(value) for name, value in merged.items() if name in DYNAMIC_SETTINGS and _is_number(value)}


def _is_number(text: str) -> bool:
    """Digits, and no more of them than a number of 64 bits has: longer ones cost time, and Python refuses some."""
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
    if change.append or change.subtract:
        raise KafkaError(ErrorCode.INVALID_CONFIG, "none of these settings is a list")
    present = state.node_configs.get(node_id, {})
    future = {} if change.replace_all else {key: value for key, value in present.items() if key not in change.remove}
    for name, value in change.set.items():
        future[name] = str(check_setting(name, value))
    require_setting_levels(state.features, change.set)
    unknown = [name for name in change.remove if name not in DYNAMIC_SETTINGS and name not in present]
    if unknown:
        check_setting(unknown[0], "")
    if future == present:
        return None
    return pb.Operation(
        change_node_config=pb.ChangeNodeConfig(
            node_id=node_id,
            set=[pb.ConfigEntry(key=key, value=future[key]) for key in sorted(future) if present.get(key) != future[key]],
            remove=sorted(present.keys() - future.keys()),
        )
    )


def _node_id(state: ClusterState, name: str) -> int:
    if not name:
        return ALL_NODES
    if not _is_number(name) or int(name) not in state.brokers:
        raise KafkaError(ErrorCode.INVALID_REQUEST, f"there is no node {name!r}: a node's id is wanted, or nothing for all nodes")
    return int(name)
