"""The producer's requests to coordinators: their contents, which of them may be repeated, and the meaning of
each answer.

Every request here may be repeated after a lost answer, for the coordinator recognises it: InitProducerId by
the expected (id, epoch) (KIP-360), AddPartitionsToTxn and AddOffsetsToTxn because adding twice is adding
once, TxnOffsetCommit because it writes the same offsets, EndTxn by the epoch it was sent with
(docs/semantics.md T13).  `EndAnswer.uncertain` says whether an answer was lost on the way: then a later
refusal does not prove that the first copy had no effect.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from ...runtime import logs
from ...wire.api import ApiKey
from ...wire.errors import ErrorCode, KafkaError
from ..connecting.cluster import Backoff, Cluster, CoordinatorKind, top_level_code
from ..connecting.errors import (
    ConnectionFailed,
    Family,
    FatalError,
    ProducerFenced,
    error_for,
    family,
    sentence,
)

log = logs.get(__name__)

TRANSACTION_VERSION_FEATURE: Final = "transaction.version"
# The first versions that carry TV2, and the last that do not.
PRODUCE_TV2: Final = 12
END_TXN_TV2: Final = 5
TXN_OFFSET_COMMIT_TV2: Final = 5
_RETRY: Final = frozenset({ErrorCode.CONCURRENT_TRANSACTIONS})
_RETRY_OFFSETS: Final = frozenset(
    {ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.REQUEST_TIMED_OUT, ErrorCode.CONCURRENT_TRANSACTIONS}
)


@dataclass(frozen=True, slots=True)
class Identity:
    """Producer id and epoch of the batches; (-1, -1): they are not idempotent."""

    producer_id: int = -1
    producer_epoch: int = -1


NO_IDENTITY: Final = Identity()


@dataclass(frozen=True, slots=True)
class GroupMetadata:
    """The member and generation that consumed: offsets sent by a member that was removed are refused
    (KIP-447)."""

    group_id: str
    generation_id: int = -1
    member_id: str = ""
    group_instance_id: str | None = None


@dataclass(frozen=True, slots=True)
class CommittedOffset:
    """A position to store: the offset of the next record to read."""

    offset: int
    leader_epoch: int = -1
    metadata: str = ""


Offsets = Mapping[tuple[str, int], CommittedOffset | int]


@dataclass(frozen=True, slots=True)
class EndAnswer:
    """The coordinator's answer to EndTxn.  `identity` is the next transaction's (TV2)."""

    code: ErrorCode
    identity: Identity | None
    uncertain: bool


class TransactionRequests:
    """Talks to the coordinators on behalf of one producer."""

    def __init__(
        self, cluster: Cluster, transactional_id: str | None, transaction_timeout_ms: int, max_block_s: float
    ) -> None:
        self._cluster = cluster
        self._id = transactional_id
        self._transaction_timeout_ms = transaction_timeout_ms
        self._max_block_s = max_block_s

    def _deadline_s(self) -> float:
        return self._cluster.clock.monotonic() + self._max_block_s

    def transaction_version(self) -> int:
        """The finalised level of the cluster, not what API versions would allow (rule T27)."""
        return 2 if self._cluster.features.get(TRANSACTION_VERSION_FEATURE, 0) >= 2 else 1

    async def init(self, expected: Identity) -> Identity:
        """InitProducerId.  Raises ProducerFenced, FatalError, RetriableError or RequestError."""
        fields = {
            "transactional_id": self._id,
            "transaction_timeout": self._transaction_timeout_ms,
            "producer_id": expected.producer_id,
            "producer_epoch": expected.producer_epoch,
        }
        if self._id is None:
            return await self._init_without_transactions(fields)
        if expected == NO_IDENTITY:
            answer = await self._ask(ApiKey.INIT_PRODUCER_ID, fields, highest=5)
        else:
            # 3: the expected identity travels
            answer = await self._ask(ApiKey.INIT_PRODUCER_ID, fields, highest=5, lowest=3)
        code = top_level_code(answer)
        if code is ErrorCode.NONE:
            return Identity(int(answer.producer_id), int(answer.producer_epoch))
        what = f"transactional id {self._id!r}"
        if family(code) is Family.FENCED:
            raise ProducerFenced(ErrorCode.PRODUCER_FENCED, sentence(ErrorCode.PRODUCER_FENCED, what))
        if family(code) is Family.ABORTABLE:
            # The coordinator has forgotten this id and identity (expiry): nothing can be carried over.
            raise FatalError(code, sentence(code, what))
        raise error_for(code, what)

    async def _init_without_transactions(self, fields: Mapping[str, Any]) -> Identity:
        deadline_s = self._deadline_s()
        backoff = Backoff(self._cluster.clock)
        while True:
            said = None
            try:
                answer = await self._cluster.ask_any(ApiKey.INIT_PRODUCER_ID, fields, highest=5)
                code = top_level_code(answer)
                if code is ErrorCode.NONE:
                    return Identity(int(answer.producer_id), int(answer.producer_epoch))
                if not code.retriable:
                    raise error_for(code, "getting a producer id")
            except ConnectionFailed as error:
                code, said = error.code, error.message
            await self._cluster.pause(backoff, deadline_s, code, "getting a producer id", said)

    async def enlist(self, identity: Identity, partitions: set[tuple[str, int]]) -> None:
        """AddPartitionsToTxn (TV1).  Raises the error of the first partition that is refused."""
        fields = {
            "v3_and_below_transactional_id": self._id,
            "v3_and_below_producer_id": identity.producer_id,
            "v3_and_below_producer_epoch": identity.producer_epoch,
            "v3_and_below_topics": [
                {"name": topic, "partitions": found} for topic, found in _by_topic(partitions).items()
            ],
        }
        answer = await self._ask(
            ApiKey.ADD_PARTITIONS_TO_TXN, fields, code_of=_worst_partition, retry=_RETRY_OFFSETS, highest=3
        )
        _require(_worst_partition(answer), f"adding partitions to the transaction of {self._id!r}")

    async def send_offsets(
        self, identity: Identity, version: int, offsets: Offsets, group: GroupMetadata
    ) -> None:
        """Puts a group's offsets into the transaction.  Under TV2 the group's coordinator enlists itself."""
        if version < 2:
            fields: dict[str, Any] = {
                "transactional_id": self._id,
                "producer_id": identity.producer_id,
                "producer_epoch": identity.producer_epoch,
                "group_id": group.group_id,
            }
            answer = await self._ask(ApiKey.ADD_OFFSETS_TO_TXN, fields, highest=3)
            _require(
                top_level_code(answer), f"adding group {group.group_id!r} to the transaction of {self._id!r}"
            )
        fields = {
            "transactional_id": self._id,
            "group_id": group.group_id,
            "producer_id": identity.producer_id,
            "producer_epoch": identity.producer_epoch,
            "generation_id": group.generation_id,
            "member_id": group.member_id,
            "group_instance_id": group.group_instance_id,
            "topics": offset_topics(offsets),
        }
        answer = await self._cluster.ask_coordinator(
            CoordinatorKind.GROUP,
            group.group_id,
            ApiKey.TXN_OFFSET_COMMIT,
            fields,
            deadline_s=self._deadline_s(),
            code_of=worst_offset_code,
            retry=_RETRY_OFFSETS,
            highest=5 if version >= 2 else TXN_OFFSET_COMMIT_TV2 - 1,
            # 3: member and generation travel, the fence of KIP-447
            lowest=TXN_OFFSET_COMMIT_TV2 if version >= 2 else 3,
        )
        _require(
            worst_offset_code(answer),
            f"offsets of group {group.group_id!r} in the transaction of {self._id!r}",
        )

    async def end(self, identity: Identity, version: int, *, commit: bool) -> EndAnswer:
        """EndTxn, repeated until it is answered.  Raises RetriableError at the deadline: the outcome is
        unknown then."""
        fields = {
            "transactional_id": self._id,
            "producer_id": identity.producer_id,
            "producer_epoch": identity.producer_epoch,
            "committed": commit,
        }
        lost: list[str] = []
        answer = await self._ask(
            ApiKey.END_TXN,
            fields,
            highest=END_TXN_TV2 if version >= 2 else END_TXN_TV2 - 1,
            lowest=END_TXN_TV2 if version >= 2 else 0,
            on_lost=lost.append,
        )
        code = top_level_code(answer)
        following = None
        if code is ErrorCode.NONE and version >= 2:
            following = Identity(int(answer.producer_id), int(answer.producer_epoch))
        return EndAnswer(code, following, bool(lost))

    async def _ask(
        self,
        api_key: ApiKey,
        fields: Mapping[str, Any],
        *,
        retry: frozenset[ErrorCode] = _RETRY,
        **options: Any,
    ) -> Any:
        assert self._id is not None
        options.setdefault("code_of", top_level_code)
        return await self._cluster.ask_coordinator(
            CoordinatorKind.TRANSACTION,
            self._id,
            api_key,
            fields,
            deadline_s=self._deadline_s(),
            retry=retry,
            **options,
        )


def offset_topics(offsets: Offsets) -> list[dict[str, Any]]:
    """The `topics` field of OffsetCommit and TxnOffsetCommit."""
    topics: dict[str, list[dict[str, Any]]] = {}
    for (topic, partition), stored in sorted(offsets.items()):
        entry = stored if isinstance(stored, CommittedOffset) else CommittedOffset(stored)
        topics.setdefault(topic, []).append(
            {
                "partition_index": partition,
                "committed_offset": entry.offset,
                "committed_leader_epoch": entry.leader_epoch,
                "committed_metadata": entry.metadata,
            }
        )
    return [{"name": topic, "partitions": partitions} for topic, partitions in topics.items()]


def worst_offset_code(answer: Any) -> ErrorCode:
    """The first error among the partitions of an (Txn)OffsetCommit answer; a final one goes before a
    retriable one."""
    return _worst(
        [ErrorCode.from_wire(int(p.error_code)) for topic in answer.topics for p in topic.partitions]
    )


def _worst_partition(answer: Any) -> ErrorCode:
    results = [p for topic in answer.results_by_topic_v3_and_below for p in topic.results_by_partition]
    return _worst([ErrorCode.from_wire(int(p.partition_error_code)) for p in results])


def _worst(codes: list[ErrorCode]) -> ErrorCode:
    worst = ErrorCode.NONE
    for code in codes:
        if code is ErrorCode.NONE or code is ErrorCode.OPERATION_NOT_ATTEMPTED:
            continue
        if family(code) is not Family.RETRIABLE:
            return code
        worst = worst if worst is not ErrorCode.NONE else code
    return worst


def _require(code: ErrorCode, what: str) -> None:
    if code is not ErrorCode.NONE:
        error: KafkaError = error_for(code, what)
        raise error


def _by_topic(partitions: set[tuple[str, int]]) -> dict[str, list[int]]:
    topics: dict[str, list[int]] = {}
    for topic, number in sorted(partitions):
        topics.setdefault(topic, []).append(number)
    return topics
