"""Produce (0): appends record batches to the partitions that this node leads.

Order, for every partition: refuse what cannot be (state topics, a transactional batch without a transactional
id); make sure that the coordinator knows of a transaction's first append here (KIP-890); check the records,
in a thread when that takes long; append, which asks once more whether this node leads; and for acks=all
answer when the batch is committed: replicated to the in-sync replicas and flushed by them.  The appends of
one connection happen in the order of its requests; the waiting does not hold up the next request, neither
that for the coordinator nor that for the commit.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial
from typing import Final
from uuid import UUID

from ....security.quotas import QuotaKind
from ....storage.log.admission import (
    CheckedBatches,
    check_and_recompress,
    check_at_once,
    is_cheap,
    is_to_be_recompressed,
)
from ....storage.log.log import AppendInfo, AppendOrigin, VerificationGuard
from ....storage.producers.producer_state import NO_EPOCH
from ....wire.compression import Compression
from ....wire.errors import ErrorCode, KafkaError
from ....wire.produce import (
    LEADER_FROM,
    ProduceRequest,
    ProduceResponse,
    ProduceResponsePartition,
    encode_produce_response,
    parse_produce_request,
)
from ....wire.records import BatchHeader, parse_header
from ...cluster.internal_topics import INTERNAL_TOPICS
from ...serving.broker import Broker
from ...serving.rejected_sequences import Sender
from ...serving.requests import (
    CooperativeYield,
    Deferred,
    Encoded,
    RequestContext,
    Staged,
    for_version,
    most_severe_error,
)
from ...upkeep.disk_reserve import is_out_of_room
from .current_leader import current_leader, endpoints

Key = tuple[str, int]

ZSTD_FROM: Final = 7

# From this version on the client leaves the enlistment of partitions to their leaders (transactions v2).
ENLISTED_BY_LEADER_FROM: Final = 12
# The first version whose clients know TRANSACTION_ABORTABLE.
ABORTABLE_FROM: Final = 11


@dataclass(slots=True)
class _Part:
    """One partition of the request."""

    topic: str
    partition: int
    records: memoryview
    answer: ProduceResponsePartition
    header: BatchHeader | None = None
    guard: VerificationGuard | None = None
    leader_epoch: int = -1
    info: AppendInfo | None = None
    topic_id: UUID | None = None


def begin(broker: Broker, context: RequestContext, body: memoryview) -> Staged:
    request, name_of = parse_produce_request(context.api_version, body), broker.cluster.topic_name
    parts = [
        _Part(topic, partition, records, ProduceResponsePartition(partition))
        for topic, partitions in request.topics
        for partition, records in partitions
    ] or [
        _Part(
            name_of(topic_id) or "",
            partition,
            records,
            ProduceResponsePartition(partition),
            topic_id=topic_id,
        )
        for topic_id, partitions in request.topics_by_id
        for partition, records in partitions
    ]
    asked = None
    if request.acks not in (-1, 0, 1):
        for part in parts:
            _fail(
                part,
                KafkaError(
                    ErrorCode.INVALID_REQUIRED_ACKS, f"acks={request.acks}: only 0, 1 and -1 (all) exist"
                ),
            )
    else:
        times = Counter((part.topic, part.partition) for part in parts)
        for part in parts:
            _check(broker, context, request, part, times)
        if request.transactional_id is not None:
            asked = _questions_of(broker, request.transactional_id, context.api_version, parts)
    return Staged(asked, lambda: _write(broker, context, request, parts), unanswered=request.acks == 0)


async def _write(
    broker: Broker, context: RequestContext, request: ProduceRequest, parts: list[_Part]
) -> Encoded | Deferred | None:
    turns = CooperativeYield(context)
    for part in parts:
        await turns.before_next(len(part.records))
        if part.answer.error is ErrorCode.NONE:
            await _append(broker, request.acks, part)
        _remember(broker, part)
    if request.acks == 0:
        _report_unanswered(parts)
        return Encoded((), throttle_ms=_charge(broker, context, parts))
    if request.acks == -1 and any(part.info is not None for part in parts):
        return Deferred(_when_committed(broker, context, request, parts))
    return _encode(broker, context, parts)


def _check(
    broker: Broker, context: RequestContext, request: ProduceRequest, part: _Part, times: Counter[Key]
) -> None:
    version = context.api_version
    try:
        if part.topic_id is not None and not part.topic:
            raise KafkaError(ErrorCode.UNKNOWN_TOPIC_ID, f"no topic has the id {part.topic_id}")
        if request.transactional_id is not None:
            broker.permissions.require(context, "transactional id", request.transactional_id)
        broker.permissions.require(context, "topic", part.topic)
        if part.topic in INTERNAL_TOPICS:
            raise KafkaError(
                ErrorCode.INVALID_TOPIC_EXCEPTION, f"{part.topic} is written by the cluster alone"
            )
        if is_out_of_room(broker.directory, broker.reserves, part.topic, part.partition):
            raise KafkaError(
                ErrorCode.KAFKA_STORAGE_ERROR, f"the disk of node {broker.node_id} is full: make room there"
            )
        if not part.records:
            raise KafkaError(ErrorCode.INVALID_RECORD, "no batch came for the partition")
        part.header = header = parse_header(part.records)
        if header.size_bytes < len(part.records) or times[part.topic, part.partition] > 1:
            raise KafkaError(
                ErrorCode.INVALID_RECORD, "a request brings one batch for a partition, this one brings more"
            )
        if header.compression is Compression.ZSTD and version < ZSTD_FROM:
            message = f"Produce {version} does not know zstd, which came with version {ZSTD_FROM}"
            raise KafkaError(ErrorCode.UNSUPPORTED_COMPRESSION_TYPE, message)
        if header.is_control:
            raise KafkaError(
                ErrorCode.INVALID_RECORD,
                "a client sent a control batch: markers are written by the cluster alone",
            )
        if header.is_transactional and request.transactional_id is None:
            raise KafkaError(
                ErrorCode.INVALID_REQUEST, "a transactional batch came without a transactional id"
            )
        if broker.permissions.is_enabled and header.producer_id >= 0 and not header.is_transactional:
            _require_no_transactions(broker, part, header.producer_id)
        broker.metrics.bytes_in(len(part.records))
    except KafkaError as error:
        _fail(part, error)


def _require_no_transactions(broker: Broker, part: _Part, producer_id: int) -> None:
    """A batch outside of a transaction, with a producer id that has had one here, is a forged one: its epoch
    would fence the transactional producer.  Raises KafkaError."""
    entry = broker.replicas.leader_log(part.topic, part.partition).producers.get(producer_id)
    if broker.enlistment.owner_of(producer_id) is not None or (
        entry is not None
        and (entry.coordinator_epoch != NO_EPOCH or entry.transaction_first_offset is not None)
    ):
        raise KafkaError(
            ErrorCode.INVALID_TXN_STATE, f"producer {producer_id} is transactional, and the batch is not"
        )


def _questions_of(
    broker: Broker, transactional_id: str, version: int, parts: list[_Part]
) -> Callable[[], Awaitable[None]] | None:
    """With an authorizer a producer id is its transactional id's: the right to write with one id, and to a
    topic, is no right to write in the transaction of another id."""
    unconfirmed = {
        part.header.producer_id
        for part in parts
        if part.header is not None and part.header.is_transactional
        if broker.permissions.is_enabled
        and broker.enlistment.owner_of(part.header.producer_id) != transactional_id
    }
    if not unconfirmed:
        return _enlistment_of(broker, transactional_id, version, parts)

    async def ask() -> None:
        for producer_id in unconfirmed:
            code = await broker.enlistment.confirm_owner(transactional_id, producer_id)
            if code is ErrorCode.NONE:
                continue
            for part in parts:
                if part.header is not None and part.header.producer_id == producer_id:
                    message = f"the producer id {producer_id} is not that of {transactional_id}"
                    _fail(part, KafkaError(code, message))
        question = _enlistment_of(broker, transactional_id, version, parts)
        if question is not None:
            await question()

    return ask


def _enlistment_of(
    broker: Broker, transactional_id: str, version: int, parts: list[_Part]
) -> Callable[[], Awaitable[None]] | None:
    """What asks the coordinator about the partitions at which this transaction has not appended yet; None
    when there are none."""
    fresh: dict[Key, _Part] = {}
    producer = (-1, -1)
    for part in parts:
        header = part.header
        if part.answer.error is not ErrorCode.NONE or header is None or not header.is_transactional:
            continue
        try:
            broker.replicas.lease.require()
            log = broker.replicas.leader_log(part.topic, part.partition)
            if log.producers.has_open_transaction(header.producer_id, header.producer_epoch):
                continue
            part.guard = log.producers.start_verification(
                header.producer_id, header.producer_epoch, header.base_sequence
            )
        except KafkaError as error:
            _fail(part, error)
            continue
        if producer not in ((-1, -1), (header.producer_id, header.producer_epoch)):
            _fail(part, KafkaError(ErrorCode.INVALID_REQUEST, "one request carries batches of two producers"))
            continue
        producer = (header.producer_id, header.producer_epoch)
        fresh[part.topic, part.partition] = part
    if not fresh:
        return None

    def take_guards() -> None:
        for part in fresh.values():
            header = part.header
            assert header is not None
            try:
                broker.replicas.lease.require()
                log = broker.replicas.leader_log(part.topic, part.partition)
                part.guard = log.producers.start_verification(
                    header.producer_id, header.producer_epoch, header.base_sequence
                )
            except KafkaError as error:
                _fail(part, error)

    async def ask() -> None:
        verify_only = version < ENLISTED_BY_LEADER_FROM
        codes = await broker.enlistment.ask(
            transactional_id, *producer, list(fresh), verify_only=verify_only, before_asking=take_guards
        )
        try:
            broker.replicas.lease.require()
        # "ask again" would keep the producer here, where nothing is written any more
        except KafkaError as error:
            for part in fresh.values():
                _fail(part, error)
            return
        for key, part in fresh.items():
            if codes[key] is not ErrorCode.NONE and part.answer.error is ErrorCode.NONE:
                _fail(
                    part,
                    KafkaError(
                        _for_producer(codes[key], version), "the partition is not part of the transaction"
                    ),
                )

    return ask


def _for_producer(code: ErrorCode, version: int) -> ErrorCode:
    """On the produce path the code for a fenced producer is INVALID_PRODUCER_EPOCH (docs/semantics.md T3)."""
    return for_version(code, fenced_known=False, abortable_known=version >= ABORTABLE_FROM)


async def _append(broker: Broker, acks: int, part: _Part) -> None:
    try:
        checked = None
        if part.header is not None and not (
            is_cheap(part.header) and _is_kept_as_it_is(broker, part, part.header)
        ):
            checked = await _check_records(broker, part)
        # No await from here to the append: every check still holds when the batch is written.
        replica = broker.replicas.replica(part.topic, part.partition)
        if part.topic_id is not None and part.topic_id != replica.topic_id:
            raise KafkaError(
                ErrorCode.UNKNOWN_TOPIC_ID,
                f"{part.topic} is topic {replica.topic_id} now, not {part.topic_id}",
            )
        part.leader_epoch = replica.leader_epoch
        info = broker.replicas.append_now(
            part.topic, part.partition, part.records if checked is None else checked.view,
            origin=AppendOrigin.CLIENT,
            guard=part.guard, required_acks=acks, checked=checked,
        )  # fmt: skip
    except KafkaError as error:
        _fail(part, error)
        return
    part.info = info
    part.answer.base_offset = info.first_offset
    part.answer.log_append_time_ms = info.append_time_ms
    part.answer.log_start_offset = info.log_start_offset


def _is_kept_as_it_is(broker: Broker, part: _Part, header: BatchHeader) -> bool:
    """Not compressed anew.  Raises KafkaError when this node does not lead."""
    return not is_to_be_recompressed(header, broker.replicas.leader_log(part.topic, part.partition).config)


async def _check_records(broker: Broker, part: _Part) -> CheckedBatches:
    """Also compresses them anew where the topic says so (`compression.type`).

    In a thread, when it takes long; again, when the topic's settings have changed meanwhile.  Raises
    KafkaError, also when the partition is another one by then: its topic was deleted and created again."""
    log = broker.replicas.leader_log(part.topic, part.partition)
    config = log.config
    checked = None
    if part.header is not None and not is_to_be_recompressed(part.header, config):
        checked = check_at_once(part.records, config, broker.clock.wall_ms())
    while checked is None or checked.config != config:
        work = partial(check_and_recompress, part.records, config, broker.clock.wall_ms())
        checked = await broker.batch_threads.run(work)
        if broker.replicas.leader_log(part.topic, part.partition) is not log:
            raise KafkaError(
                ErrorCode.NOT_LEADER_OR_FOLLOWER, f"{part.topic}-{part.partition} was made again meanwhile"
            )
        config = log.config
    return checked


def _remember(broker: Broker, part: _Part) -> None:
    """Batches behind a refused one are refused alike: see rejected_sequences.py."""
    header = part.header
    if header is None or header.base_sequence < 0:
        return
    sender = Sender(part.topic, part.partition, header.producer_id, header.producer_epoch)
    if part.answer.error is ErrorCode.NONE:
        broker.rejected_sequences.accepted(sender)
    else:
        now_s = broker.clock.monotonic()
        part.answer.error = broker.rejected_sequences.refused(
            sender, header.base_sequence, part.answer.error, now_s
        )


def _fail(part: _Part, error: KafkaError) -> None:
    """KIP-467: the records at fault are named; a client then fails them alone as invalid, and the rest of
    their batch as what may be sent again."""
    part.answer.error = error.code
    part.answer.error_message = error.message or None
    part.answer.record_errors = [(index, None) for index in error.records]


async def _when_committed(
    broker: Broker, context: RequestContext, request: ProduceRequest, parts: list[_Part]
) -> Encoded:
    waiting = 0
    done: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def settle(part: _Part, code: ErrorCode) -> None:
        nonlocal waiting
        waiting -= 1
        if code is not ErrorCode.NONE:
            part.answer.error = code
            part.answer.base_offset = -1
        if waiting == 0 and not done.done():
            done.set_result(None)

    appended = [part for part in parts if part.info is not None]
    waiting = len(appended)
    for part in appended:
        assert part.info is not None
        broker.replicas.when_committed(
            part.topic,
            part.partition,
            part.leader_epoch,
            part.info.next_offset,
            request.timeout_ms,
            lambda code, part=part: settle(part, code),  # type: ignore[misc]
        )
    await done
    return _encode(broker, context, parts)


def _charge(broker: Broker, context: RequestContext, parts: list[_Part]) -> int:
    return broker.throttling.charge(context, QuotaKind.PRODUCE, sum(len(part.records) for part in parts))


def _encode(broker: Broker, context: RequestContext, parts: list[_Part]) -> Encoded:
    by_name: dict[str, list[ProduceResponsePartition]] = {}
    by_id: dict[UUID, list[ProduceResponsePartition]] = {}
    leaders: set[int] = set()
    for part in parts:
        if part.topic_id is None:
            by_name.setdefault(part.topic, []).append(part.answer)
        else:
            by_id.setdefault(part.topic_id, []).append(part.answer)
        if part.answer.error is ErrorCode.NOT_LEADER_OR_FOLLOWER and context.api_version >= LEADER_FROM:
            part.answer.current_leader = leader = current_leader(broker, part.topic, part.partition)
            if leader is not None:
                leaders.add(leader[0])
    response = ProduceResponse(list(by_name.items()), topics_by_id=list(by_id.items()))
    if leaders:
        response.node_endpoints = endpoints(broker, leaders, context.listener_name)
    response.throttle_ms = _charge(broker, context, parts)
    body = encode_produce_response(context.api_version, response)
    outcome = most_severe_error(part.answer.error for part in parts)
    return Encoded([body], outcome, response.throttle_ms)


def _report_unanswered(parts: list[_Part]) -> None:
    """acks=0 has no answer: the only way to tell of an error is to close the connection, as every client
    expects."""
    failed = [part for part in parts if part.answer.error is not ErrorCode.NONE]
    if failed:
        first = failed[0]
        raise KafkaError(
            first.answer.error,
            f"acks=0 produce to {first.topic}-{first.partition}: {first.answer.error_message}",
        )
