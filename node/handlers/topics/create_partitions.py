"""CreatePartitions (37): makes a topic wider; keys hash to other partitions afterwards, which the caller must
want."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ....proto import controller_pb2 as pb
from ....wire.errors import ErrorCode, KafkaError
from ...serving.broker import Broker
from ...serving.requests import Fields, RequestContext, milliseconds
from .mutation_quota import EXCEEDED, charge_mutations

if TYPE_CHECKING:
    from ....wire.request_types import CreatePartitionsRequest


async def handle(broker: Broker, context: RequestContext, request: CreatePartitionsRequest) -> Fields:
    wanted = pb.CreatePartitionsRequest(validate_only=request.validate_only)
    unassigned = {
        topic.name for topic in request.topics if topic.assignments is not None and not topic.assignments
    }
    refused = {
        topic.name: broker.permissions.refusal(context, "topic", topic.name) for topic in request.topics
    }
    for topic in request.topics:
        if topic.name in unassigned or refused[topic.name] is not ErrorCode.NONE:
            continue
        new = wanted.topics.add(name=topic.name, total=topic.count)
        for assignment in topic.assignments or ():
            new.assignments.add(replicas=assignment.broker_ids)
    names = dict.fromkeys(topic.name for topic in request.topics)
    if not wanted.topics:
        results = [_refused(name, refused[name]) or _unassigned(name) for name in names]
        return {"throttle_time": 0, "results": results}
    throttle_ms, reply = 0, pb.CreatePartitionsReply()
    try:
        sizes = [_added(broker, topic) for topic in wanted.topics]
        admitted, throttle_ms = await charge_mutations(broker, context, sizes)
        over = {wider.name for wider in wanted.topics[admitted:]}
        refused.update((name, ErrorCode.THROTTLING_QUOTA_EXCEEDED) for name in names if name in over)
        kept = [wider for wider in wanted.topics if wider.name not in over]
        wanted = pb.CreatePartitionsRequest(validate_only=request.validate_only, topics=kept)
        if wanted.topics:
            reply = await broker.controller.create_partitions(
                wanted, max(1.0, milliseconds(request.timeout) / 1000)
            )
    except KafkaError as error:
        failed = [
            _refused(name, refused[name])
            or {"name": name, "error_code": error.code, "error_message": error.message or None}
            for name in names
        ]
        return {"throttle_time": throttle_ms, "results": failed}
    if not request.validate_only:
        await broker.topics.wait_for_metadata(reply.metadata_index)
    # a topic that is asked for twice is refused as one
    answers = {answer.name: answer for answer in reply.topics}
    results = [
        _refused(name, refused[name]) or _unassigned(name)
        if name in unassigned or refused[name] is not ErrorCode.NONE
        else {"name": name, "error_code": answers[name].error, "error_message": answers[name].message or None}
        for name in names
    ]
    return {"throttle_time": throttle_ms, "results": results}


def _added(broker: Broker, topic: pb.PartitionsToCreate) -> int:
    found = broker.state.topics.get(topic.name)
    return 0 if found is None else max(0, topic.total - len(found.partitions))


def _refused(name: str, code: ErrorCode) -> dict[str, object] | None:
    if code is ErrorCode.NONE:
        return None
    message = EXCEEDED if code is ErrorCode.THROTTLING_QUOTA_EXCEEDED else None
    return {"name": name, "error_code": code, "error_message": message}


def _unassigned(name: str) -> dict[str, object]:
    """An empty list of assignments is one that assigns nothing; it is no wish to have the partitions
    placed."""
    message = "the list of assignments is empty: give one for each new partition, or none at all"
    return {"name": name, "error_code": ErrorCode.INVALID_REPLICA_ASSIGNMENT, "error_message": message}
