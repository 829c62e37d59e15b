"""The history checker: compares what clients observed with the guarantees of Tidegate (docs/semantics.md,
chapter V).

Pure: `check` takes a recorded history and reports its anomalies.  It knows nothing of the run, of nodes or of
faults, and it concludes only what the evidence proves: an anomaly in the report is a broken guarantee, not a
suspicion.

Each check stands alone in `CHECKS`.  Its tests are a hand-written history that it must reject, a similar one
that it must accept, and its ablation: without the check, the bad history passes.

It is modelled on Jepsen's kafka workload, and stricter in three places:

* polls of failed and undecided operations count as evidence (an aborted transaction has no right to read
  aborted data either, and what it read was committed, and must stay);
* with `final_logs`, everything that must have committed must be in them, not only what lies below a value
  already read;
* atomicity over partitions, offsets committed in transactions, and fencing are checked in their own right.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from .anomaly import Anomaly, AnomalyKind
from .cycles import Cycle, find_cycles
from .evidence import Evidence, FinalLogs, FinalOffsets
from .fencing_checks import identities, zombies
from .history import Op, OpOutcome
from .offset_checks import consumed_never, consumed_twice, torn_offset_commits
from .position_checks import polls_between_operations, polls_within_operations, sends_in_order
from .record_checks import (
    aborted_reads,
    duplicates,
    inconsistent_offsets,
    lost_writes,
    precommitted_reads,
    torn_transactions,
    unseen_writes,
    unwritten_values,
)

Check = Callable[[Evidence], Iterator[Anomaly]]


def read_cycles(evidence: Evidence) -> Iterator[Anomaly]:
    """G1c without write order: a reader read a record before it can have been committed."""
    for cycle in find_cycles(evidence, write_order=False):
        yield _cycle(cycle)


def _cycle(cycle: Cycle) -> Anomaly:
    return Anomaly(AnomalyKind(cycle.name), f"each came before the next: {cycle}", ops=cycle.ops)


CHECKS: Mapping[str, Check] = {
    "lost": lost_writes,
    "unseen": unseen_writes,
    "duplicate": duplicates,
    "inconsistent offsets": inconsistent_offsets,
    "unwritten": unwritten_values,
    "aborted visible": aborted_reads,
    "precommitted read": precommitted_reads,
    "torn": torn_transactions,
    "polls within operations": polls_within_operations,
    "polls between operations": polls_between_operations,
    "sends in order": sends_in_order,
    "offsets torn": torn_offset_commits,
    "consumed twice": consumed_twice,
    "consumed never": consumed_never,
    "zombies": zombies,
    "identities": identities,
    "read cycles": read_cycles,
}


@dataclass(frozen=True, slots=True)
class Counts:
    """How much was checked: a verdict over an empty history proves nothing."""

    operations: int
    transactions_ok: int
    transactions_failed: int
    transactions_undecided: int
    records_sent: int
    records_committed: int
    """Records that must be there."""
    records_polled: int
    records_final: int
    """Records in the final read of all partitions."""


@dataclass(frozen=True, slots=True)
class Report:
    """The verdict.  `tolerated` holds cycles that need write order: no broken guarantee (transactions may
    interleave in a log), but worth showing."""

    anomalies: list[Anomaly]
    counts: Counts
    tolerated: list[Anomaly]

    @property
    def valid(self) -> bool:
        return not self.anomalies

    def count(self, *kinds: AnomalyKind) -> int:
        """How many anomalies of these kinds were found."""
        found = Counter(anomaly.kind for anomaly in self.anomalies)
        return sum(found[kind] for kind in kinds)

    def describe(self, anomalies_max: int = 20) -> str:
        """The verdict in lines for people, the first `anomalies_max` anomalies in full."""
        if self.valid:
            return (
                f"no anomaly in {self.counts.operations} operations, {self.counts.records_final} records "
                "in the final read"
            )
        found = Counter(anomaly.kind for anomaly in self.anomalies)
        lines = [", ".join(f"{number} x {kind}" for kind, number in sorted(found.items()))]
        lines += [f"  {anomaly}" for anomaly in self.anomalies[:anomalies_max]]
        if len(self.anomalies) > anomalies_max:
            lines.append(f"  ... and {len(self.anomalies) - anomalies_max} more")
        return "\n".join(lines)


def check(
    history: Sequence[Op],
    final_logs: FinalLogs,
    final_offsets: FinalOffsets | None = None,
    *,
    checks: Mapping[str, Check] = CHECKS,
    tolerated_cycles: bool = False,
) -> Report:
    """Checks a history against the guarantees.

    `final_logs`: partition -> [(offset, value)] in reading order, read_committed, from the log's start to its
    end after the workload has stopped.  Other partitions are checked by the polls alone.  `final_offsets`:
    group -> partition -> committed position, for the checks on transactional offsets.  Raises HistoryError
    when the history itself is malformed. `tolerated_cycles` looks for G0 and G1c over the write order too,
    which costs another pass.
    """
    evidence = Evidence.gather(history, final_logs, final_offsets)
    anomalies = [anomaly for run in checks.values() for anomaly in run(evidence)]
    tolerated: list[Anomaly] = []
    if tolerated_cycles:
        tolerated = [
            _cycle(cycle) for cycle in find_cycles(evidence, write_order=True) if cycle.needs_write_order
        ]
    return Report(anomalies, _count(evidence), tolerated)


def _count(evidence: Evidence) -> Counts:
    history = evidence.history
    transactions = Counter(
        op.outcome for op in history if op.transactional_id is not None and any(True for _ in op.sends)
    )
    return Counts(
        operations=len(history),
        transactions_ok=transactions[OpOutcome.OK],
        transactions_failed=transactions[OpOutcome.FAIL],
        transactions_undecided=transactions[OpOutcome.INFO],
        records_sent=len(evidence.writers),
        records_committed=sum(1 for op in history for _ in evidence.committed_sends(op)),
        records_polled=sum(
            len(records) for op in history for poll in op.polls for records in poll.records.values()
        ),
        records_final=sum(len(records) for records in evidence.final_logs.values()),
    )
