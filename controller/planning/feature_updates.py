"""Raising and lowering feature levels (UpdateFeatures): only what every broker and every voter of the quorum
can follow.  A function of the state and the request.
"""

from __future__ import annotations

from collections.abc import Mapping

from ...proto import controller_pb2 as rpc
from ...proto import metadata_pb2 as pb
from ...wire.errors import ErrorCode, KafkaError
from ..state.cluster_state import ClusterState
from ..state.features import Ranges, highest_known, shown, shown_ranges
from ..state.model import METADATA_VERSION, name_of_metadata_level
from ..state.topic_defaults import missing_defaults
from .plan import Plan


def plan_update(
    state: ClusterState,
    request: rpc.UpdateFeaturesRequest,
    voters: Mapping[int, Ranges | None],
    *,
    applied_before: bool = False,
    min_insync_replicas: int = 1,
) -> Plan:
    """All updates in one plan, or KafkaError.  `voters`: the ranges of each voter, None when it did not
    answer. A plan of nothing for a request that was applied before, whatever has changed since."""
    if applied_before:
        return Plan()
    plan, seen = Plan(reason="feature levels", request_id=request.request_id), set[str]()
    for update in request.updates:
        if update.name in seen:
            raise KafkaError(ErrorCode.INVALID_REQUEST, f"{update.name} is in the request more than once")
        seen.add(update.name)
        present = shown(state.features).get(update.name, 0)
        _check_update(state, update, present, voters)
        if update.level != present:
            name = name_of_metadata_level(update.level) if update.name == METADATA_VERSION else update.name
            expected = state.features.get(name, 0)
            change = pb.SetFeatureLevel(name=name, level=update.level, expected_level=expected)
            plan.operations.append(pb.Operation(set_feature_level=change))
        if update.name == METADATA_VERSION:
            plan.operations += missing_defaults(
                {update.name: update.level}, state.node_configs, min_insync_replicas
            )
    return Plan() if request.validate_only else plan


def _check_update(
    state: ClusterState, update: rpc.FeatureUpdate, present: int, voters: Mapping[int, Ranges | None]
) -> None:
    name, level = update.name, update.level
    ranges = shown_ranges()
    if name not in ranges:
        raise KafkaError(
            ErrorCode.INVALID_UPDATE_VERSION,
            f"unknown feature {name!r}: there are {', '.join(sorted(ranges))}",
        )
    if level < present:
        if not update.downgrade:
            message = (
                f"{name} is {present} already: {level} would be a downgrade, and the request does not "
                "ask for one"
            )
            raise KafkaError(ErrorCode.INVALID_UPDATE_VERSION, message)
        if name == METADATA_VERSION:
            # The log and snapshots hold entries of the present level; a node that does not know them would
            # read them wrongly.
            message = f"{name} is never lowered: the metadata may hold what a lower level does not know"
            raise KafkaError(ErrorCode.INVALID_UPDATE_VERSION, message)
    low, high = ranges[name]
    if not low <= level <= high:
        raise KafkaError(
            ErrorCode.INVALID_UPDATE_VERSION, f"{name}={level}: the controller knows {low} to {high}"
        )
    lacking = []
    for broker in sorted(state.brokers.values(), key=lambda broker: broker.node_id):
        highest = highest_known({each: (0, known) for each, known in broker.supported_features}, name)
        if highest < level:
            lacking.append(f"broker {broker.node_id} ({highest})")
    silent = []
    for node_id in sorted(voters):
        known = voters[node_id]
        if known is None:
            silent.append(str(node_id))
        elif highest_known(known, name) < level:
            lacking.append(f"controller {node_id} ({highest_known(known, name)})")
    if lacking:
        message = f"{name}={level} is not known to {', '.join(lacking)}: upgrade or unregister them first"
        raise KafkaError(ErrorCode.INVALID_UPDATE_VERSION, message)
    if silent:
        message = (
            f"controllers {', '.join(silent)} did not say which levels they know: all of them must be there"
        )
        raise KafkaError(ErrorCode.FEATURE_UPDATE_FAILED, message)
