"""What clients ask of pinned cuts.  Rights, on every topic of a cut: READ to get it, DESCRIBE to see it
listed, READ and ALTER to pin it, ALTER to unpin it.

A cut that a client hands in names its topics by id: rights are asked for the topics that have these ids, not
for the names beside them.  A cut that the client may not see listed is not there for it, and a refusal names
no topic that it may not describe.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Final

from ...controller.state.model import INTERNAL_TOPICS
from ...controller.state.pinned_cuts import PINNED_CUT_BYTES_MAX, PinnedCut, too_large
from ...proto import cuts_pb2 as pb
from ...runtime import logs
from ...wire.errors import ErrorCode, KafkaError
from ..serving.grpc_callers import Caller, GrpcAccess
from .pinning import ClusterMetadata, CutPinning
from .pins import listed_message, pinned_message

log = logs.get(__name__)

TOPICS_MAX: Final = 1_000
ENTRIES_MAX: Final = PINNED_CUT_BYTES_MAX // 4
"""Partitions and undecided transactions of a cut that a client hands in: empty ones take two bytes each,
those of a real cut at least four."""
CATCH_UP_S: Final = 5.0


class PinnedCutCalls:
    """See the module's text.  Each raises KafkaError."""

    def __init__(
        self,
        cluster: ClusterMetadata,
        pinning: CutPinning,
        access: GrpcAccess,
        read_barrier: Callable[[float], Awaitable[int]],
    ) -> None:
        """`read_barrier(timeout)`: a node whose metadata reach the index has all that was committed before
        the call; raises KafkaError."""
        self._cluster = cluster
        self._pinning = pinning
        self._access = access
        self._read_barrier = read_barrier

    async def pin(self, request: pb.PinCutRequest, caller: Caller) -> pb.PinnedCut:
        timeout_s = request.timeout_ms / 1000
        if not request.WhichOneof("what"):
            raise KafkaError(ErrorCode.INVALID_REQUEST, "topics, or a cut, are to be pinned")
        if request.HasField("cut"):
            _require_small(request.cut)
            await self._catch_up()
            cut = self._named(request.cut, caller)
            self._require_pin(caller, [topic.name for topic in cut.topics])
            pinned = await self._pinning.pin(request.name, cut, request.retention_ms, timeout_s)
        else:
            topics = list(request.topics.topics)
            self._require_pin(caller, topics)
            pinned = await self._pinning.pin_new(request.name, topics, request.retention_ms, timeout_s)
        log.info("cut_pinned", cut=pinned.name, pin=pinned.pin_id, principal=caller.principal)
        return pinned_message(self._cluster.state, pinned)

    async def get(self, request: pb.GetCutRequest, caller: Caller) -> pb.PinnedCut:
        found = await self._find(request.name, caller)
        if found is None or not found.is_confirmed:
            state = "pinned" if found is None else "confirmed"
            raise KafkaError(
                ErrorCode.RESOURCE_NOT_FOUND,
                f"no cut is {state} as {request.name!r}: `tidegate cuts list` shows those that are pinned",
            )
        for topic in found.topics:
            self._access.require(caller, "GetCut", topic.name)
        return pinned_message(self._cluster.state, found)

    async def list(self, request: pb.ListCutsRequest, caller: Caller) -> pb.ListCutsReply:
        await self._catch_up()
        state = self._cluster.state
        seen = [cut for _, cut in sorted(state.pinned_cuts.items()) if self._sees(caller, cut)]
        return pb.ListCutsReply(cuts=[listed_message(state, cut) for cut in seen])

    async def unpin(self, request: pb.UnpinCutRequest, caller: Caller) -> pb.UnpinCutReply:
        found = await self._find(request.name, caller)
        if found is None:
            return pb.UnpinCutReply()
        for topic in found.topics:
            self._access.require(caller, "UnpinCut", topic.name)
        await self._pinning.unpin(found.pin_id)
        log.info("cut_unpinned", cut=found.name, pin=found.pin_id, principal=caller.principal)
        return pb.UnpinCutReply(was_pinned=True)

    async def _find(self, name: str, caller: Caller) -> PinnedCut | None:
        """None, too, when the caller may not see it."""
        found = self._cluster.state.pinned_cuts.get(name)
        if found is None or not found.is_confirmed:  # it may be too new for this node's metadata
            await self._catch_up()
            found = self._cluster.state.pinned_cuts.get(name)
        return found if found is not None and self._sees(caller, found) else None

    def _sees(self, caller: Caller, cut: PinnedCut) -> bool:
        return all(self._access.allows(caller, "ListCuts", topic.name) for topic in cut.topics)

    async def _catch_up(self) -> None:
        try:
            index = await self._read_barrier(CATCH_UP_S)
            await self._cluster.wait_for_index(index, CATCH_UP_S)
        except TimeoutError:
            message = "this node does not get the metadata"
            raise KafkaError(ErrorCode.REQUEST_TIMED_OUT, message) from None

    def _named(self, cut: pb.Cut, caller: Caller) -> pb.Cut:
        """With the names that the topics of these ids have.  Raises UNKNOWN_TOPIC_ID, also for a topic that
        the caller may not describe."""
        _require_few(len(cut.topics))
        named = pb.Cut()
        named.CopyFrom(cut)
        for topic in named.topics:
            present = self._cluster.state.topic_by_raw_id(topic.topic_id)
            if present is None or not self._access.allows(caller, "ListCuts", present.name):
                message = f"topic {topic.name!r} of the cut is not there any more, or never was"
                raise KafkaError(ErrorCode.UNKNOWN_TOPIC_ID, message)
            topic.name = present.name
        return named

    def _require_pin(self, caller: Caller, topics: Sequence[str]) -> None:
        _require_few(len(topics))
        for topic in topics:
            self._access.require(caller, "GetCut", topic)
            self._access.require(caller, "PinCut", topic)
            if topic in INTERNAL_TOPICS:
                message = f"{topic} is internal: no cut has it"
                raise KafkaError(ErrorCode.INVALID_TOPIC_EXCEPTION, message)


def _require_small(cut: pb.Cut) -> None:
    """Before anything of it is copied.  The record in the metadata log is no smaller than the cut."""
    size_bytes = cut.ByteSize()
    if size_bytes > PINNED_CUT_BYTES_MAX:
        raise KafkaError(ErrorCode.POLICY_VIOLATION, too_large(size_bytes))
    entries = sum(1 + len(part.undecided) for topic in cut.topics for part in topic.partitions)
    if entries > ENTRIES_MAX:
        message = f"the cut has {entries} partitions and undecided transactions: at most {ENTRIES_MAX}"
        raise KafkaError(ErrorCode.POLICY_VIOLATION, message)


def _require_few(topics: int) -> None:
    if topics > TOPICS_MAX:
        raise KafkaError(ErrorCode.INVALID_REQUEST, f"{topics} topics: a cut has at most {TOPICS_MAX}")
