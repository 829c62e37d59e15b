"""Fetch (1): record batches as they are stored, for consumers and followers alike; long poll."""

from __future__ import annotations

from ...wire.fetch import FetchRequest, encode_fetch_response, parse_fetch_request
from ..broker import Broker
from ..requests import Deferred, Encoded, RequestContext, gravest


async def handle(broker: Broker, context: RequestContext, body: memoryview) -> Deferred:
    # Parsed now: the body's memory belongs to the connection and goes back to it when this request is answered.
    request = parse_fetch_request(context.api_version, body)
    request.max_bytes = min(request.max_bytes, broker.configuration.integer("fetch.max.bytes"))
    return Deferred(_fetch(broker, context, request))


async def _fetch(broker: Broker, context: RequestContext, request: FetchRequest) -> Encoded:
    result = await broker.replicas.fetch(request)
    buffers = encode_fetch_response(context.api_version, result.topics, error=result.error, session_id=result.session_id)
    broker.metrics.bytes_out(sum(len(part.records) for _, parts in result.topics for part in parts))
    return Encoded(buffers, gravest([result.error, *(part.error for _, parts in result.topics for part in parts)]))
