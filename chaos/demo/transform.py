"""Step 2 of the main job: reads `flights` read_committed, writes the late arrivals, its offsets inside its
transactions.

If a transaction fails, for whatever reason, the job seeks to the group's committed offsets and continues from
there: output and offsets move together or not at all.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Final

from ...client.connecting.errors import (
    AbortableError,
    CommitOutcomeUnknown,
    GroupChanged,
    RequestError,
    RetriableError,
)
from ...client.consuming.consumer import Consumer, ConsumerRecord
from ...client.producing.producer import Producer
from ...runtime import logs
from ...runtime.clock import Clock
from .flights import LATE_MINUTES

log = logs.get(__name__)

GROUP: Final = "late-arrivals-job"
RECORDS_PER_TRANSACTION: Final = 4000
FAILURES_MAX: Final = 100


class LateArrivals:
    """Runs until `total` records of `source` were consumed in committed transactions.  `consumed` counts
    them."""

    def __init__(
        self,
        bootstrap: str,
        source: str,
        target: str,
        total: int,
        clock: Clock,
        on_progress: Callable[[int], None],
    ) -> None:
        self.failures = 0
        self._bootstrap = bootstrap
        self._source = source
        self._target = target
        self._total = total
        self._clock = clock
        self._on_progress = on_progress

    async def run(self) -> None:
        async with (
            Consumer(
                self._bootstrap,
                group_id=GROUP,
                auto_offset_reset="earliest",
                auto_commit=False,
                max_poll_records=RECORDS_PER_TRANSACTION,
                session_timeout_ms=15_000,
            ) as consumer,
            Producer(
                self._bootstrap,
                transactional_id=GROUP,
                compression="zstd",
                linger_ms=20,
                batch_bytes=128 * 1024,
            ) as producer,
        ):
            consumer.subscribe([self._source])
            done = 0
            while done < self._total:
                records = await consumer.poll(timeout_s=1.0)
                if not records:
                    continue
                if await self._process(consumer, producer, records):
                    done += len(records)
                    self._on_progress(len(records))
                else:
                    await self._go_back(consumer)

    async def _process(
        self, consumer: Consumer, producer: Producer, records: Sequence[ConsumerRecord]
    ) -> bool:
        """One transaction: late arrivals out, positions in.  False when it must be done again."""
        try:
            await producer.begin()
            for record in records:
                if _is_late(record.value):
                    await producer.send(self._target, record.value, record.key)
            await producer.send_offsets_to_transaction(consumer.positions(), consumer.group_metadata())
            await self._commit_until_known(producer)
            return True
        except CommitOutcomeUnknown:
            raise  # `done` would be a guess
        except (AbortableError, RetriableError, GroupChanged) as error:
            self.failures += 1
            log.info("transform_repeated", records=len(records), error=error)
            if self.failures > FAILURES_MAX:
                raise
        try:
            await producer.abort()
        except (AbortableError, RetriableError, RequestError) as error:
            log.info("abort_not_confirmed", error=error)  # the next `begin` makes sure of it
        await self._clock.sleep(0.1)
        return False

    async def _commit_until_known(self, producer: Producer) -> None:
        for _ in range(20):
            try:
                await producer.commit()
                return
            except CommitOutcomeUnknown as error:
                log.info("commit_asked_again", error=error)
        await producer.commit()

    async def _go_back(self, consumer: Consumer) -> None:
        """Seeks to the group's committed offsets; to the beginning where there is none."""
        assigned = consumer.assignment()
        committed = await consumer.committed(assigned)
        fresh = [partition for partition in assigned if partition not in committed]
        if fresh:
            await consumer.seek_to_beginning(*fresh)
        for partition, found in committed.items():
            consumer.seek(partition, found.offset)


def _is_late(value: bytes | None) -> bool:
    if value is None:
        return False
    delay = json.loads(value)["arr_delay"]
    return delay is not None and delay >= LATE_MINUTES
