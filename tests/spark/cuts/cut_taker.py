"""The service of cuts over the real logs of a `ServedCluster`, where each append is committed at once: a cut
needs no more than to look at all of them in one go.  (How nodes take cuts is tested in their own room.)"""

from __future__ import annotations

from typing import Any

import grpc
from tidegate.proto import cuts_pb2 as pb
from tidegate.proto import cuts_pb2_grpc
from tidegate.spark.connecting.errors import ERROR_DETAIL_KEY
from tidegate.wire.errors import ErrorCode

from ..served import ServedCluster


class CutTaker(cuts_pb2_grpc.CutsServicer):
    """`decided`: producer ids whose commit is decided, though no marker says so yet."""

    def __init__(self, cluster: ServedCluster) -> None:
        self.cluster = cluster
        self.decided: set[int] = set()
        self.pinned: dict[str, pb.Cut] = {}
        self.taken = 0
        cluster.add_services = lambda server: cuts_pb2_grpc.add_CutsServicer_to_server(self, server)

    async def TakeCut(self, request: pb.TakeCutRequest, context: Any) -> pb.Cut:
        topics = self.cluster.metadata.topics
        missing = [name for name in request.topics if name not in topics]
        if missing:
            await self._abort(context, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"no topic {missing[0]!r}")
        self.taken += 1
        cut = pb.Cut(cut_id=f"cut-{self.taken}", taken_ms=1_700_000_000_000 + self.taken)
        for name in request.topics:
            state = topics[name]
            topic = cut.topics.add(name=name, topic_id=state.topic_id.bytes)
            for number, partition in sorted(state.partitions.items()):
                log = self.cluster.nodes[partition.leader].replicas.replica(name, number).log
                part = topic.partitions.add(
                    partition=number, start=log.log_start_offset, end=log.high_watermark
                )
                for first, producer_id in log.producers.open_transactions.items():
                    if producer_id not in self.decided and first < log.high_watermark:
                        part.undecided.add(producer_id=producer_id, first_offset=first)
        return cut

    async def GetCut(self, request: pb.GetCutRequest, context: Any) -> pb.PinnedCut:
        if request.name not in self.pinned:
            await self._abort(context, ErrorCode.RESOURCE_NOT_FOUND, f"no cut is pinned as {request.name!r}")
        return pb.PinnedCut(name=request.name, cut=self.pinned[request.name])

    async def PinCut(self, request: pb.PinCutRequest, context: Any) -> pb.PinnedCut:
        cut = request.cut if request.HasField("cut") else await self.TakeCut(request.topics, context)
        self.pinned[request.name] = cut
        return pb.PinnedCut(name=request.name, cut=cut)

    async def ListCuts(self, request: pb.ListCutsRequest, context: Any) -> pb.ListCutsReply:
        return pb.ListCutsReply(cuts=[pb.ListedCut(name=name) for name in sorted(self.pinned)])

    async def UnpinCut(self, request: pb.UnpinCutRequest, context: Any) -> pb.UnpinCutReply:
        return pb.UnpinCutReply(was_pinned=self.pinned.pop(request.name, None) is not None)

    async def _abort(self, context: Any, code: ErrorCode, message: str) -> None:
        detail = pb.CutError(error_code=code, message=message)
        await context.abort(
            grpc.StatusCode.NOT_FOUND, message, ((ERROR_DETAIL_KEY, detail.SerializeToString()),)
        )
