"""Cuts, those that are pinned among them (docs/cuts.md): the gRPC requests behind the methods of `Admin` of
the same names.  Any node answers them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

from ...proto import cuts_pb2 as pb
from ...proto import cuts_pb2_grpc
from ...wire.errors import ErrorCode
from ..connecting.cluster import Backoff, Cluster
from ..connecting.errors import ConnectionFailed, RequestError
from ..consuming.cut import Cut
from .descriptions import CutListing, PinnedCut
from .grpc_calls import ask_node

MARGIN_S: Final = 1.0
"""The node is to answer before the call ends."""


async def pin_cut(
    cluster: Cluster, name: str, what: Sequence[str] | Cut, retention_ms: int, timeout_s: float
) -> PinnedCut:
    if not 0 < retention_ms < 1 << 63:
        message = f"retention_ms is from 1 to cut.retention.max.ms, not {retention_ms}"
        raise RequestError(ErrorCode.INVALID_REQUEST, message)
    timeout_ms = int(1000 * max(MARGIN_S, timeout_s - MARGIN_S))
    request = pb.PinCutRequest(name=name, retention_ms=retention_ms, timeout_ms=timeout_ms)
    if isinstance(what, Cut):
        request.cut.CopyFrom(what.to_proto())
    else:
        request.topics.CopyFrom(pb.TakeCutRequest(topics=what, timeout_ms=timeout_ms))
    # not repeated: after an answer that is lost the name is taken, maybe by this very call
    return _pinned(
        await _ask_any(cluster, timeout_s, lambda stub, **how: stub.PinCut(request, **how), once=True)
    )


async def take_cut(cluster: Cluster, topics: Sequence[str], timeout_s: float) -> Cut:
    timeout_ms = int(1000 * max(MARGIN_S, timeout_s - MARGIN_S))
    request = pb.TakeCutRequest(topics=topics, timeout_ms=timeout_ms)
    return Cut.from_proto(
        await _ask_any(cluster, timeout_s, lambda stub, **how: stub.TakeCut(request, **how))
    )


async def describe_cut(cluster: Cluster, name: str, timeout_s: float) -> PinnedCut:
    request = pb.GetCutRequest(name=name)
    return _pinned(await _ask_any(cluster, timeout_s, lambda stub, **how: stub.GetCut(request, **how)))


async def list_cuts(cluster: Cluster, timeout_s: float) -> list[CutListing]:
    request = pb.ListCutsRequest()
    reply = await _ask_any(cluster, timeout_s, lambda stub, **how: stub.ListCuts(request, **how))
    return [
        CutListing(
            each.name, tuple(each.topics), each.partitions, each.taken_ms, each.pinned_ms, each.expires_ms,
            each.is_confirmed, tuple(each.deleted_topics),
        )
        for each in reply.cuts
    ]  # fmt: skip


async def unpin_cut(cluster: Cluster, name: str, timeout_s: float) -> bool:
    request = pb.UnpinCutRequest(name=name)
    reply = await _ask_any(cluster, timeout_s, lambda stub, **how: stub.UnpinCut(request, **how))
    return bool(reply.was_pinned)


def _pinned(reply: Any) -> PinnedCut:
    cut = Cut.from_proto(reply.cut)
    return PinnedCut(reply.name, cut, reply.pinned_ms, reply.expires_ms, tuple(reply.deleted_topics))


async def _ask_any(
    cluster: Cluster, timeout_s: float, call: Callable[..., Any], *, once: bool = False
) -> Any:
    """Another node where one does not answer, until the time is up; `once`: no second time."""
    deadline_s = cluster.clock.monotonic() + timeout_s
    backoff = Backoff(cluster.clock)
    while True:
        await cluster.refresh()
        for node_id in sorted(cluster.view.brokers):
            left_s = deadline_s - cluster.clock.monotonic()
            try:
                return await ask_node(
                    cluster,
                    node_id,
                    left_s,
                    pb.CutError.FromString,
                    lambda channel, **how: call(cuts_pb2_grpc.CutsStub(channel), **how),
                )
            except ConnectionFailed as error:
                if once or cluster.clock.monotonic() >= deadline_s:
                    raise
                failure = error
        await cluster.pause(backoff, deadline_s, failure.code, "pinned cuts", failure.message)
