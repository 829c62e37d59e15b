"""Transactions and producers, as their coordinators and partition leaders know them: the requests behind
`Admin`'s methods of the same names."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Sequence
from typing import Any, Final

from ...wire.api import ApiKey
from ...wire.describe_transactions import decode_described_transactions
from ...wire.errors import ErrorCode
from ..connecting.cluster import Cluster, CoordinatorKind, require_none, top_level_code
from ..connecting.errors import RequestError
from .all_coordinators import ask_all
from .descriptions import ProducerDescription, TransactionDescription, TransactionListing

JOB_PREFIX: Final = "tidegate.job/"
"""Of the transactional ids that are attempts of jobs."""
TERMINATION_TIMEOUT_MS: Final = 60_000
"""Of the id's next transaction, which its next instance sets anew."""
LIST_TRANSACTIONS_BY_DURATION: Final = 1
"""The lowest version that has this filter."""


async def list_transactions(
    cluster: Cluster,
    states: Sequence[str],
    timeout_s: float,
    *,
    producer_ids: Collection[int],
    running_for_ms: int,
) -> list[TransactionListing]:
    """The transactional ids of all coordinators, optionally only those in certain states, of certain
    producers, or whose transaction has been running for longer than so many milliseconds (KIP-994)."""
    found: list[TransactionListing] = []
    fields = {
        "state_filters": list(states),
        "producer_id_filters": sorted(producer_ids),
        "duration_filter": running_for_ms,
    }
    lowest = LIST_TRANSACTIONS_BY_DURATION if running_for_ms >= 0 else 0
    for node_id, answer in await ask_all(cluster, ApiKey.LIST_TRANSACTIONS, fields, timeout_s, lowest=lowest):
        require_none(top_level_code(answer), "listing transactions")
        found += [
            TransactionListing(
                entry.transactional_id, int(entry.producer_id), entry.transaction_state, node_id
            )
            for entry in answer.transaction_states
        ]
    return sorted(found, key=lambda entry: entry.transactional_id)


async def describe_transaction(
    cluster: Cluster, transactional_id: str, timeout_s: float
) -> TransactionDescription:
    """One transactional id.  Raises RequestError when no coordinator knows it."""

    (entry,) = await cluster.ask_coordinator(
        CoordinatorKind.TRANSACTION,
        transactional_id,
        ApiKey.DESCRIBE_TRANSACTIONS,
        {"transactional_ids": [transactional_id]},
        deadline_s=cluster.clock.monotonic() + timeout_s,
        code_of=lambda found: found[0].error_code,
        decode=decode_described_transactions,
    )
    require_none(entry.error_code, f"transactional id {transactional_id!r}")
    coordinator = await cluster.coordinator(
        CoordinatorKind.TRANSACTION, transactional_id, cluster.clock.monotonic() + timeout_s
    )
    return TransactionDescription(
        entry.transactional_id,
        entry.state,
        entry.producer_id,
        entry.producer_epoch,
        entry.timeout_ms,
        entry.started_ms,
        coordinator,
        entry.partitions,
    )


async def abort_transaction(cluster: Cluster, transactional_id: str, timeout_s: float) -> None:
    """By an InitProducerId of a new instance, as Kafka's forceTerminateTransaction does it.  Raises
    RequestError when no coordinator knows the id."""
    if transactional_id.startswith(JOB_PREFIX):
        message = f"{transactional_id} is an attempt of a job, which alone ends it: `tidegate jobs abort`"
        raise RequestError(ErrorCode.INVALID_REQUEST, message)
    await describe_transaction(cluster, transactional_id, timeout_s)  # an InitProducerId would make the id
    answer = await cluster.ask_coordinator(
        CoordinatorKind.TRANSACTION,
        transactional_id,
        ApiKey.INIT_PRODUCER_ID,
        {
            "transactional_id": transactional_id,
            "transaction_timeout": TERMINATION_TIMEOUT_MS,
            "producer_id": -1,
            "producer_epoch": -1,
        },
        deadline_s=cluster.clock.monotonic() + timeout_s,
        code_of=top_level_code,
        retry=frozenset({ErrorCode.CONCURRENT_TRANSACTIONS}),
        highest=5,
    )
    require_none(top_level_code(answer), f"aborting the transaction of {transactional_id!r}")


async def describe_producers(
    cluster: Cluster, partitions: Iterable[tuple[str, int]]
) -> list[ProducerDescription]:
    """The producer state of the partitions' leaders: open transactions, sequence numbers."""
    wanted = sorted(partitions)
    await cluster.refresh({topic for topic, _ in wanted})
    by_leader: defaultdict[int, dict[str, list[int]]] = defaultdict(dict)
    for topic, number in wanted:
        leader = cluster.view.leader(topic, number)
        require_none(
            ErrorCode.NONE if leader >= 0 else ErrorCode.LEADER_NOT_AVAILABLE,
            f"producers of {topic}-{number}",
        )
        by_leader[leader].setdefault(topic, []).append(number)
    found: list[ProducerDescription] = []
    for leader, topics in by_leader.items():
        fields = {
            "topics": [{"name": name, "partition_indexes": numbers} for name, numbers in topics.items()]
        }
        answer = await cluster.ask(leader, ApiKey.DESCRIBE_PRODUCERS, fields)
        for topic in answer.topics:
            for entry in topic.partitions:
                require_none(
                    top_level_code(entry),
                    f"producers of {topic.name}-{entry.partition_index}",
                    entry.error_message,
                )
                found += [
                    _producer(topic.name, int(entry.partition_index), state)
                    for state in entry.active_producers
                ]
    return found


def _producer(topic: str, partition: int, state: Any) -> ProducerDescription:
    return ProducerDescription(
        topic,
        partition,
        int(state.producer_id),
        int(state.producer_epoch),
        int(state.last_sequence),
        int(state.last_timestamp),
        int(state.coordinator_epoch),
        int(state.current_txn_start_offset),
    )
