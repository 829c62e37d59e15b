"""How a producer's requests reach the coordinator and the partitions' leaders, and what the brokers do upon
them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any
from zlib import crc32

from ....coordinator.group.classic.records import OffsetValue, encode_offset_key, encode_offset_value
from ....coordinator.transaction.events import AddPartitions, EndTxn
from ....coordinator.transaction.jobs import JobId, coordination_key, transactional_id
from ....storage.log.log import AppendOrigin, VerificationGuard
from ....wire.errors import ErrorCode, KafkaError
from ....wire.records import NewRecord, encode_batch
from .coordinators import Coordinators
from .environment import Environment
from .partitions import NOW_MS, OFFSETS, DataPartition


class Requests:
    """See the module's text."""

    def __init__(
        self,
        environment: Environment,
        coordinators: Sequence[Coordinators],
        partitions: Sequence[DataPartition],
    ) -> None:
        self._environment, self._coordinators, self.partitions = environment, coordinators, partitions

    def _coordinator_of(self, event: Any) -> Coordinators:
        """By the transactional id, or the job."""
        job: JobId | None = getattr(event, "job", None)
        name = event.transactional_id if job is None else transactional_id(job, "any")
        return self._coordinators[crc32(coordination_key(name).encode()) % len(self._coordinators)]

    def to_coordinator(self, event: Any, reply: Callable[[Any], None]) -> None:
        environment, nodes = self._environment, self._coordinator_of(event).nodes
        believers = [node for node in nodes if node.alive and node.leads]
        target = environment.random.choice(believers) if believers else nodes[0]

        def arrive() -> None:
            if not target.alive:
                environment.post(lambda: reply(KafkaError(ErrorCode.NETWORK_EXCEPTION)))
                return
            target.runtime.submit(0, event, lambda value: environment.post(lambda: reply(value)))

        def lost() -> None:
            reply(KafkaError(ErrorCode.NETWORK_EXCEPTION))

        if isinstance(event, EndTxn) and environment.inflicts(environment.faults.late_ends):
            environment.postpone(arrive)
            environment.messages.append(lost)
            return
        environment.post(arrive, on_lost=lost)

    def produce(
        self, name: str, version: int, place: int, pid: int, epoch: int, sequence: int,
        value: int,
        reply: Callable[[ErrorCode], None],
    ) -> None:  # fmt: skip
        """KIP-890: the first append of a transaction is enlisted (TV2) or verified (TV1) under a guard."""
        environment, partition = self._environment, self.partitions[place]
        record = _record(name, place, value)
        batch = encode_batch(
            [record], producer_id=pid, producer_epoch=epoch, base_sequence=sequence, transactional=True
        )

        def answer(code: ErrorCode) -> None:
            environment.post(lambda: reply(code))

        def arrive() -> None:
            at, log = partition.leader, partition.log
            try:
                if log.producers.has_open_transaction(pid, epoch) or not environment.faults.verifies:
                    append(at, None)
                    return
                guard = log.producers.start_verification(pid, epoch, sequence)
            except KafkaError as error:
                answer(error.code)
                return
            ask = AddPartitions(name, pid, epoch, (partition.name,), version, version < 2)
            self.to_coordinator(ask, lambda said: enlisted(said, at, guard))

        def enlisted(said: Any, at: int, guard: VerificationGuard) -> None:
            code = said.code if isinstance(said, KafkaError) else next(iter(said.errors.values()))
            if code is not ErrorCode.NONE:
                answer(code)
                return
            if not environment.faults.guard_before_question:
                try:
                    guard = partition.logs[at].producers.start_verification(pid, epoch, sequence)
                except KafkaError as error:
                    answer(error.code)
                    return
            append(at, guard)

        def append(at: int, guard: VerificationGuard | None) -> None:
            full = environment.inflicts(environment.faults.full)
            partition.append(at, batch, AppendOrigin.CLIENT, guard, version, answer, full=full)

        if environment.inflicts(environment.faults.late_produces):
            environment.postpone(arrive)
            environment.messages.append(lambda: reply(ErrorCode.NETWORK_EXCEPTION))
            return
        environment.post(arrive, on_lost=lambda: reply(ErrorCode.NETWORK_EXCEPTION))


def _record(transactional_id: str, place: int, value: int) -> NewRecord:
    if place == OFFSETS:
        key = encode_offset_key(transactional_id, "t", 0)
        return NewRecord(key, encode_offset_value(OffsetValue(value, -1, "", NOW_MS)), (), NOW_MS)
    return NewRecord(None, b"%d" % value, (), NOW_MS)
