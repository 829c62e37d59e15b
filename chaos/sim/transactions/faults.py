"""What a history of transactions may meet, and which safeguards it leaves out."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Final

from ....coordinator.transaction.markers import MarkerQueue
from ....coordinator.transaction.shard import TransactionShard


@dataclass(frozen=True)
class Faults:
    """Chances: of a message (duplicate, late, lose, resend), of an append (refuse, full), of a step (the
    others).  `prepare`: the chance that a producer with two-phase commit prepares a transaction, which it, or
    its next instance, ends later.  `late_markers` are marker requests whose sender still waits,
    `late_produces` and `late_ends` are Produce and EndTxn requests whose sender does not; `learn` is how soon
    a deposed coordinator learns of its loss; `move` is of the data partitions' leaders.  `validates`: the
    shards look at their invariants after every event and step; without it the history alone is judged.
    `jobs`: drivers run jobs beside the producers; `stall` and `crash_driver` are of a driver.  `cuts`: takers
    of cuts stand beside them, `shards` state partitions coordinate, a deposed leader of a data partition does
    not know it yet (`unaware`), and partitions are added (`grow`).  `clients` is
    how many producers there are, `deliveries` how many messages arrive in a step at most,
    `fetch` how often a replica of a state partition fetches.  `strike`: as soon as
    a cut is finished a coordinator dies, and all producers that are ending a transaction crash;
    `usurp`: as soon as one is asked for, a coordinator is deposed, and does not know it."""

    transaction_version: int = 2
    duplicate: float = 0.15
    late: float = 0.03
    late_markers: float = 0.05
    late_produces: float = 0.0
    late_ends: float = 0.0
    lose: float = 0.03
    resend: float = 0.05
    refuse: float = 0.02
    crash_client: float = 0.003
    prepare: float = 0.3
    kill: float = 0.003
    depose: float = 0.004
    learn: float = 0.02
    move: float = 0.01
    full: float = 0.01
    max_epoch: int = 4
    skip_barrier: bool = False
    verifies: bool = True
    guard_before_question: bool = True
    initialises_after_unknown_end: bool = True
    jobs: bool = False
    stall: float = 0.002
    crash_driver: float = 0.003
    cuts: bool = False
    clients: int = 2
    deliveries: int = 6
    fetch: float = 0.7
    shards: int = 1
    unaware: float = 0.0
    grow: float = 0.0
    strike: float = 0.0
    usurp: float = 0.0
    validates: bool = True
    queue: Callable[..., MarkerQueue] = MarkerQueue
    shard: Callable[..., TransactionShard] = TransactionShard


TV1 = Faults(
    transaction_version=1, duplicate=0.0, late=0.0, late_markers=0.2, late_produces=0.05, late_ends=0.05,
    lose=0.0,
    resend=0.0, crash_client=0.0,
)  # fmt: skip
"""TV1 cannot tell the transactions of one producer apart (KAFKA-17754): of its requests only Produce and
EndTxn outlive their sender's patience, and no marker does, which could end the next transaction; but every
coordinator fault happens."""

_QUICK: Final[dict[str, Any]] = {
    "cuts": True, "shards": 2, "clients": 6, "deliveries": 24, "kill": 0.001, "depose": 0.001,
    "move": 0.002, "unaware": 0.5, "grow": 0.002,
}  # fmt: skip
CUTS = Faults(jobs=True, resend=0.02, late=0.02, lose=0.005, duplicate=0.05, crash_client=0.001, **_QUICK)
CUTS_TV1 = replace(TV1, late_produces=0.01, late_ends=0.01, late_markers=0.05, **_QUICK)
"""Takers of cuts beside producers that do much, and a network that is mostly quick: cuts are finished."""
