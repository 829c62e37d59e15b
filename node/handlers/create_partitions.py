"""CreatePartitions (37): makes a topic wider; keys hash to other partitions afterwards, which the caller must want."""

from __future__ import annotations

from typing import Any

from ...proto import controller_pb2 as pb
from ...wire.errors import ErrorCode, KafkaError
from ..broker import Broker
from ..internal_topics import INTERNAL_TOPICS
from ..requests import Fields, RequestContext, milliseconds


async def handle(broker: Broker, context: RequestContext, request: Any) -> Fields:
    wanted = pb.CreatePartitionsRequest(validate_only=request.validate_only)
    results = []
    for topic in request.topics:
        if topic.name in INTERNAL_TOPICS:
            message = "the partition count of a state topic never changes: keys would lose their coordinator"
            results.append({"name": topic.name, "error_code": ErrorCode.INVALID_TOPIC_EXCEPTION, "error_message": message})
            continue
        new = wanted.topics.add(name=topic.name, total=topic.count)
        for assignment in topic.assignments or ():
            new.assignments.add(replicas=assignment.broker_ids)
    if wanted.topics:
        try:
            reply = await broker.controller.create_partitions(wanted, max(1.0, milliseconds(request.timeout) / 1000))
            if not request.validate_only:
                await broker.wait_for_metadata(reply.metadata_index)
            results += [
                {"name": answer.name, "error_code": answer.error, "error_message": answer.message or None}
                for answer in reply.topics
            ]
        except KafkaError as error:
            results += [{"name": t.name, "error_code": error.code, "error_message": str(error)} for t in wanted.topics]
    return {"throttle_time": 0, "results": results}
