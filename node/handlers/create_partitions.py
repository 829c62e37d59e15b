"""CreatePartitions (37): makes a topic wider; keys hash to other partitions afterwards, which the caller must want."""

from __future__ import annotations

from typing import Any

from ...proto import controller_pb2 as pb
from ...wire.errors import KafkaError
from ..broker import Broker
from ..requests import Fields, RequestContext, milliseconds


async def handle(broker: Broker, context: RequestContext, request: Any) -> Fields:
    wanted = pb.CreatePartitionsRequest(validate_only=request.validate_only)
    for topic in request.topics:
        new = wanted.topics.add(name=topic.name, total=topic.count)
        for assignment in topic.assignments or ():
            new.assignments.add(replicas=assignment.broker_ids)
    names = dict.fromkeys(topic.name for topic in request.topics)
    if not names:
        return {"throttle_time": 0, "results": []}
    try:
        reply = await broker.controller.create_partitions(wanted, max(1.0, milliseconds(request.timeout) / 1000))
    except KafkaError as error:
        failed = [{"name": name, "error_code": error.code, "error_message": error.message or None} for name in names]
        return {"throttle_time": 0, "results": failed}
    if not request.validate_only:
        await broker.wait_for_metadata(reply.metadata_index)
    answers = {answer.name: answer for answer in reply.topics}  # a topic that is asked for twice is refused as one
    results = [
        {"name": name, "error_code": answers[name].error, "error_message": answers[name].message or None} for name in names
    ]
    return {"throttle_time": 0, "results": results}
