"""WriteTxnMarkers (27): a coordinator ends transactions at the partitions that this node leads
(`marker_writing`)."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from ....wire.errors import ErrorCode
from ...coordinators.marker_writing import Marker, MarkerWrites
from ...serving.broker import Broker
from ...serving.requests import Deferred, Fields, RequestContext

if TYPE_CHECKING:
    from ....wire.request_types import WriteTxnMarkersRequest


async def handle(
    broker: Broker, context: RequestContext, request: WriteTxnMarkersRequest
) -> Deferred | Fields:
    permissions = broker.permissions
    is_administrator = permissions.is_enabled and permissions.allows(context, "cluster")
    if not (is_administrator or permissions.allows_node(context, "broker")):
        return _answer(request, lambda *_: ErrorCode.CLUSTER_AUTHORIZATION_FAILED)
    writes = MarkerWrites(broker.replicas, broker.groups, broker.clock)
    for each in request.markers:
        version = getattr(each, "transaction_version", 0)
        marker = Marker(
            each.producer_id, each.producer_epoch, each.coordinator_epoch, each.transaction_result, version
        )
        for topic in each.topics:
            for index in topic.partition_indexes:
                writes.append(marker, topic.name, index)
    return Deferred(_when_known(request, writes))


async def _when_known(request: WriteTxnMarkersRequest, writes: MarkerWrites) -> Fields:
    await writes.all_known()
    return _answer(request, lambda *key: writes.codes[key])


def _answer(request: WriteTxnMarkersRequest, code_of: Callable[[int, str, int], ErrorCode]) -> Fields:
    return {
        "markers": [
            {
                "producer_id": marker.producer_id,
                "topics": [
                    {
                        "name": topic.name,
                        "partitions": [
                            {
                                "partition_index": index,
                                "error_code": code_of(marker.producer_id, topic.name, index),
                            }
                            for index in topic.partition_indexes
                        ],
                    }
                    for topic in marker.topics
                ],
            }
            for marker in request.markers
        ]
    }
