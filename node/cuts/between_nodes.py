"""The requests of cuts between nodes.

They travel over the brokers' Kafka listener, which knows nodes by their certificates, as markers and
enlistments do: the gRPC listener of a broker is for clients, and where that has SASL a node has no identity
there.  A connection of their own: answers leave in the order of the requests, and a marker may wait long.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, TypeVar

from google.protobuf.message import DecodeError, Message

from ...proto import cuts_pb2 as pb
from ...wire.api import NodeRequest
from ...wire.errors import ErrorCode, KafkaError
from ..cluster.peers import Peers
from ..serving.broker import Broker
from ..serving.requests import Deferred, Encoded, RequestContext

REQUEST_BYTES_MAX: Final = 4 << 20
_REQUESTS: Final[dict[NodeRequest, type[Message]]] = {
    NodeRequest.HOLD_DECISIONS: pb.HoldDecisionsRequest,
    NodeRequest.RELEASE_DECISIONS: pb.ReleaseDecisionsRequest,
    NodeRequest.CUT_BOUNDS: pb.BoundsRequest,
}

Reply = TypeVar("Reply", bound=Message)


def handle(broker: Broker, context: RequestContext, body: memoryview) -> Deferred:
    """Answers a node; closes the connection of any other client."""
    if not broker.permissions.may_act_as_node(context):
        message = f"{context.principal} is no node: request {context.api_key} is between nodes"
        raise KafkaError(ErrorCode.CLUSTER_AUTHORIZATION_FAILED, message)
    if len(body) > REQUEST_BYTES_MAX:
        message = f"a request between nodes has {len(body)} bytes: at most {REQUEST_BYTES_MAX} are taken"
        raise KafkaError(ErrorCode.INVALID_REQUEST, message)
    kind = NodeRequest(context.api_key)
    try:
        request = _REQUESTS[kind].FromString(bytes(body))
    except DecodeError as error:
        raise KafkaError(ErrorCode.INVALID_REQUEST, f"{kind.name.lower()}: {error}") from error
    return Deferred(_answer(broker, request))


async def _answer(broker: Broker, request: Message) -> Encoded:
    return Encoded([(await answer_here(broker.cut_shards, request)).SerializeToString()])


async def answer_here(shards: Any, request: Message) -> Message:
    """By this node."""
    match request:
        case pb.HoldDecisionsRequest():
            found: Message = await shards.hold(request)
        case pb.ReleaseDecisionsRequest():
            found = await shards.release(request)
        case pb.BoundsRequest():
            found = await shards.bounds(request)
        case _:
            raise KafkaError(ErrorCode.INVALID_REQUEST, f"{type(request).__name__} is no request of cuts")
    return found


async def ask(
    peers: Peers, node_id: int, request: Message, reply: Callable[[bytes], Reply], timeout_s: float
) -> Reply:
    """Another node.  Raises KafkaError."""
    kind = next(kind for kind, message in _REQUESTS.items() if isinstance(request, message))
    answer: Reply = await peers.peer(node_id).exchange(
        kind, 0, [request.SerializeToString()], lambda frame: reply(bytes(frame[4:])), timeout_s
    )
    return answer
