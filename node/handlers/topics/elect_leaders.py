"""ElectLeaders (43): elects preferred replicas, or, where the topic allows an unclean election, a live one
(KIP-460).

The broker answers when it has applied the new leaders.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from ....proto import controller_pb2 as pb
from ....wire.errors import ErrorCode, KafkaError
from ...serving.broker import Broker
from ...serving.requests import Fields, RequestContext, milliseconds

if TYPE_CHECKING:
    from ....wire.request_types import ElectLeadersRequest

_PREFERRED: Final = 0
_UNCLEAN: Final = 1


async def handle(broker: Broker, context: RequestContext, request: ElectLeadersRequest) -> Fields:
    election_type = getattr(request, "election_type", _PREFERRED)
    if election_type not in (_PREFERRED, _UNCLEAN):
        return {"throttle_time": 0, "error_code": ErrorCode.INVALID_REQUEST, "replica_election_results": []}
    everything = request.topic_partitions is None
    asked = [(topic.topic, index) for topic in request.topic_partitions or () for index in topic.partitions]
    wanted = pb.ElectLeadersRequest(unclean=election_type == _UNCLEAN, every_partition=everything)
    for name, index in asked:
        wanted.partitions.add(topic=name, partition=index)
    try:
        broker.permissions.require(context, "cluster")
        reply = await broker.controller.elect_leaders(wanted, max(1.0, milliseconds(request.timeout) / 1000))
    except KafkaError as error:
        topics = _by_topic([(name, index, error.code, error.message) for name, index in dict.fromkeys(asked)])
        return {"throttle_time": 0, "error_code": error.code, "replica_election_results": topics}
    await broker.topics.wait_for_metadata(reply.metadata_index)
    topics = _by_topic(
        [
            (result.topic, result.partition, ErrorCode(result.error), result.message)
            for result in reply.results
        ]
    )
    return {"throttle_time": 0, "error_code": ErrorCode.NONE, "replica_election_results": topics}


def _by_topic(results: list[tuple[str, int, ErrorCode, str]]) -> list[dict[str, object]]:
    topics: dict[str, list[dict[str, object]]] = {}
    for name, index, code, message in results:
        answer: dict[str, object] = {
            "partition_id": index,
            "error_code": code,
            "error_message": message or None,
        }
        topics.setdefault(name, []).append(answer)
    return [{"topic": name, "partition_result": partitions} for name, partitions in topics.items()]
