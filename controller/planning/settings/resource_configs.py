"""What a request makes of the settings of groups and of subscriptions to clients' metrics.  Pure.

They are part of the metadata, by type and name: there is nothing else that would have to exist.  A resource
whose last setting is taken away is gone.
"""

from __future__ import annotations

from collections import Counter
from functools import partial
from typing import Final

from ....proto import controller_pb2 as rpc
from ....proto import metadata_pb2 as pb
from ....wire.errors import ErrorCode, KafkaError
from ...state.cluster_state import ClusterState
from ...state.features import require_level
from ...state.model import RESOURCES_LEVEL
from ...state.resource_settings import (
    SETTINGS_OF,
    ConfigKind,
    GroupLimits,
    ResourceType,
    check_config,
)
from ..topics import TopicPlan, TopicPlans
from .topic_settings import edited

RESOURCES_MAX: Final = 10_000
"""Resources that have settings, of all types: each is in the memory of every node and in every snapshot."""
NAME_BYTES_MAX: Final = 1024
_WORDS: Final = {ResourceType.CLIENT_METRICS: "client-metrics", ResourceType.GROUP: "group"}


def plan_resource_configuration(
    state: ClusterState, limits: GroupLimits, request: rpc.AlterConfigsRequest
) -> TopicPlans:
    """A plan for each entry of `request.resources`; the result's name is the resource's."""
    plans = TopicPlans()
    times = Counter((each.resource_type, each.change.name) for each in request.resources)
    made = 0
    for each in request.resources:
        kind, change = each.resource_type, each.change
        result = rpc.TopicResult(name=change.name)
        operation = None
        try:
            if times[kind, change.name] > 1:
                raise KafkaError(ErrorCode.INVALID_REQUEST, "this resource is in the request more than once")
            operation = _plan(state, limits, kind, change, made)
            made += operation is not None and (kind, change.name) not in state.resource_configs
        except KafkaError as error:
            result.error, result.message = int(error.code), error.message
        plans.topics.append(TopicPlan(result, None if request.validate_only else operation))
    return plans


def _plan(
    state: ClusterState, limits: GroupLimits, kind: int, change: rpc.ConfigChange, made: int
) -> pb.Operation | None:
    require_level(state.features, RESOURCES_LEVEL)
    if kind not in SETTINGS_OF:
        raise KafkaError(ErrorCode.INVALID_REQUEST, f"unknown type of resource {kind}")
    if not change.name:
        raise KafkaError(
            ErrorCode.INVALID_REQUEST, f"Default {_WORDS[ResourceType(kind)]} resources are not allowed."
        )
    if len(change.name.encode()) > NAME_BYTES_MAX:
        raise KafkaError(
            ErrorCode.INVALID_REQUEST, f"the name of a resource has at most {NAME_BYTES_MAX} bytes"
        )
    present = state.resource_configs.get((kind, change.name), {})
    future = edited(present, change, partial(_list_default, kind))
    if future == present:
        return None
    check_config(kind, future, limits)
    if not present and len(state.resource_configs) + made >= RESOURCES_MAX:
        message = (
            f"{RESOURCES_MAX} groups and subscriptions have settings already: take away those that are "
            "not needed"
        )
        raise KafkaError(ErrorCode.POLICY_VIOLATION, message)
    return pb.Operation(
        change_resource_config=pb.ChangeResourceConfig(
            resource_type=kind,
            name=change.name,
            set=[
                pb.ConfigEntry(key=key, value=future[key])
                for key in sorted(future)
                if present.get(key) != future[key]
            ],
            remove=sorted(present.keys() - future.keys()),
        )
    )


def _list_default(kind: int, key: str, verb: str) -> str:
    setting = SETTINGS_OF[kind].get(key)
    if setting is None or setting.kind is not ConfigKind.LIST:
        raise KafkaError(ErrorCode.INVALID_CONFIG, f"Can't {verb} to key {key} because its type is not LIST.")
    return setting.default
