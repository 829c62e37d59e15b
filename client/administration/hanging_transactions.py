"""Hanging transactions (KIP-664): open at a partition, but unknown to their coordinator, so no coordinator
will ever end them.

An open transaction bounds the last stable offset of a partition, and so stops read_committed readers, until
its marker arrives. Coordinators write markers, so a transaction that its coordinator does not know stays open
for ever.  Tidegate's verification of transactions prevents hanging ones; but a log may have been copied from
another system.

This module never aborts a transaction that its coordinator has open: its marker could contradict the
coordinator's decision.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol

from ...wire.api import ApiKey
from ...wire.errors import ErrorCode
from ..connecting.cluster import Cluster, require_none
from ..connecting.errors import RequestError, RetriableError, sentence
from .descriptions import ProducerDescription, TopicDescription, TransactionDescription, TransactionListing

TRANSACTION_STATE: Final = "__transaction_state"
IDLE_MS: Final = 900_000
"""The longest timeout that nodes give a transaction by default: a transaction without a record for so long
has ended or hangs."""


@dataclass(frozen=True, slots=True)
class HangingTransaction:
    """An open transaction of a partition that no coordinator will end, and `why`.  `transactional_id`: the id
    that has this producer id now, if any."""

    topic: str
    partition: int
    producer_id: int
    producer_epoch: int
    coordinator_epoch: int
    open_since_offset: int
    last_timestamp_ms: int
    transactional_id: str | None
    why: str


class TransactionQueries(Protocol):
    """The requests that the search needs; the admin client implements them."""

    async def describe_producers(
        self, partitions: Collection[tuple[str, int]]
    ) -> list[ProducerDescription]: ...

    async def describe_topics(
        self, names: Sequence[str], *, config: bool = True
    ) -> list[TopicDescription]: ...

    async def list_transactions(self) -> list[TransactionListing]: ...

    async def describe_transaction(self, transactional_id: str) -> TransactionDescription: ...


async def find_hanging(
    admin: TransactionQueries, places: Collection[tuple[str, int]], now_ms: int, idle_ms: int = IDLE_MS
) -> list[HangingTransaction]:
    """The hanging transactions of the partitions whose last record is at least `idle_ms` old.  The client
    asks the partitions, then the coordinators, then the partitions again: a transaction that ended meanwhile
    was not hanging.

    Raises RetriableError when a coordinator was not reachable or moved meanwhile: its transactions may be
    missing in the lists.
    """
    known = await admin.describe_producers(places)
    suspects = [p for p in known if p.open_since_offset >= 0 and now_ms - p.last_timestamp_ms >= idle_ms]
    if not suspects:
        return []
    coordinators = await _coordinators(admin)
    owners = {listing.producer_id: listing for listing in await admin.list_transactions()}
    found = [(suspect, await _why(admin, suspect, owners.get(suspect.producer_id))) for suspect in suspects]
    still = {
        (p.topic, p.partition, p.producer_id, p.open_since_offset)
        for p in await admin.describe_producers({(p.topic, p.partition) for p in suspects})
    }
    if await _coordinators(admin) != coordinators:
        raise RetriableError(
            ErrorCode.NOT_COORDINATOR, "a coordinator moved while the transactions were looked for: ask again"
        )
    return [
        HangingTransaction(
            p.topic, p.partition, p.producer_id, p.producer_epoch, p.coordinator_epoch, p.open_since_offset,
            p.last_timestamp_ms,
            owners[p.producer_id].transactional_id if p.producer_id in owners else None, why,
        )
        for p, why in found
        if why and (p.topic, p.partition, p.producer_id, p.open_since_offset) in still
    ]  # fmt: skip


async def _coordinators(admin: TransactionQueries) -> dict[int, tuple[int, int]]:
    """Leader and leader epoch of every partition of the state topic.  Raises RetriableError when one has no
    leader."""
    try:
        (topic,) = await admin.describe_topics([TRANSACTION_STATE], config=False)
    except RequestError as error:
        if error.code is not ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
            raise
        return {}  # the state topic does not exist: there was never a transaction
    alone = [view.partition for view in topic.partitions if view.leader < 0]
    if alone:
        what = f"no coordinator has the transactions of {TRANSACTION_STATE} {', '.join(map(str, alone))} now"
        raise RetriableError(
            ErrorCode.COORDINATOR_NOT_AVAILABLE, sentence(ErrorCode.COORDINATOR_NOT_AVAILABLE, what)
        )
    return {view.partition: (view.leader, view.leader_epoch) for view in topic.partitions}


async def _why(
    admin: TransactionQueries, suspect: ProducerDescription, owner: TransactionListing | None
) -> str:
    """Why the transaction hangs; empty when its coordinator has it open at this partition, and so will end
    it."""
    if owner is None:
        return "no coordinator knows its producer id"
    try:
        known = await admin.describe_transaction(owner.transactional_id)
    except RequestError as error:
        if error.code is not ErrorCode.TRANSACTIONAL_ID_NOT_FOUND:
            raise
        return "its transactional id has expired"
    if suspect.partition in known.partitions.get(suspect.topic, ()):
        return ""
    return f"its coordinator is in state {known.state} and has not got this partition in a transaction"


async def abort_hanging(cluster: Cluster, hanging: HangingTransaction) -> None:
    """Writes the missing ABORT marker.  Raises RequestError when a newer producer or coordinator has written
    to the partition."""
    place = f"{hanging.topic}-{hanging.partition}"
    leader = cluster.view.leader(hanging.topic, hanging.partition)
    require_none(ErrorCode.NONE if leader >= 0 else ErrorCode.LEADER_NOT_AVAILABLE, f"aborting at {place}")
    fields: dict[str, Any] = {
        "markers": [
            {
                "producer_id": hanging.producer_id,
                "producer_epoch": hanging.producer_epoch,
                "transaction_result": False,
                "topics": [{"name": hanging.topic, "partition_indexes": [hanging.partition]}],
                "coordinator_epoch": max(0, hanging.coordinator_epoch),
            }
        ]
    }
    answer = await cluster.ask(leader, ApiKey.WRITE_TXN_MARKERS, fields, highest=1)
    for marker in answer.markers:
        for topic in marker.topics:
            for partition in topic.partitions:
                require_none(ErrorCode.from_wire(int(partition.error_code)), f"aborting at {place}")
