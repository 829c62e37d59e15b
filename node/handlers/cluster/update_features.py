"""UpdateFeatures (57): raises or lowers the cluster's feature levels, all that are named or none (KIP-584,
KIP-778).

A level is lowered only when the request says so and nothing can depend on it; there is no unsafe way.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, cast

from ....proto import controller_pb2 as pb
from ....wire.errors import ErrorCode, KafkaError
from ...serving.broker import Broker
from ...serving.requests import Fields, RequestContext, milliseconds

if TYPE_CHECKING:
    from ....wire.request_types import FeatureUpdate, FeatureUpdateV0, UpdateFeaturesRequest

_UPGRADE: Final = 1
_SAFE_DOWNGRADE: Final = 2
_UNSAFE_DOWNGRADE: Final = 3
_RESULTS_UP_TO: Final = 1  # later versions have one error for all


async def handle(broker: Broker, context: RequestContext, request: UpdateFeaturesRequest) -> Fields:
    wanted = pb.UpdateFeaturesRequest(validate_only=getattr(request, "validate_only", False))
    try:
        broker.permissions.require(context, "cluster")
        for update in request.feature_updates:
            wanted.updates.add(
                name=update.feature, level=update.max_version_level, downgrade=_is_downgrade(update)
            )
        reply = await broker.controller.update_features(
            wanted, max(1.0, milliseconds(request.timeout) / 1000)
        )
    except KafkaError as error:
        return _answer(context, request, error.code, error.message or None)
    await broker.topics.wait_for_metadata(reply.metadata_index)
    return _answer(context, request, ErrorCode.NONE, None)


def _is_downgrade(update: FeatureUpdate) -> bool:
    kind = getattr(update, "upgrade_type", None)
    if kind is None:
        return bool(cast("FeatureUpdateV0", update).allow_downgrade)
    if kind == _UNSAFE_DOWNGRADE:
        message = f"{update.feature}: levels are only lowered where that is safe: ask for a safe downgrade"
        raise KafkaError(ErrorCode.INVALID_UPDATE_VERSION, message)
    if kind not in (_UPGRADE, _SAFE_DOWNGRADE):
        raise KafkaError(
            ErrorCode.INVALID_REQUEST, f"unknown kind of update {kind}: 1 upgrades, 2 downgrades"
        )
    return bool(kind == _SAFE_DOWNGRADE)


def _answer(
    context: RequestContext, request: UpdateFeaturesRequest, code: ErrorCode, message: str | None
) -> Fields:
    answer: dict[str, object] = {"throttle_time": 0, "error_code": code, "error_message": message}
    if context.api_version <= _RESULTS_UP_TO:
        done = request.feature_updates if code is ErrorCode.NONE else ()
        answer["results"] = [
            {"feature": each.feature, "error_code": code, "error_message": message} for each in done
        ]
    return answer
