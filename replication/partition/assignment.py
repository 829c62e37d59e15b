"""Values that cross the border of this folder: what the metadata says of a partition, and what is asked of the controller.

All of them are immutable; `Assignment` mirrors the controller's PartitionState so that this folder need not import it.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from uuid import UUID

from ...wire.errors import ErrorCode


class Eligibility(enum.Enum):
    """Whether the controller would take one life of a follower into an ISR, as the applied metadata has it."""

    YES = "yes"
    NOT_NOW = "not_now"  # fenced, or its replica is offline, or its registration has not arrived here
    NEVER = "never"  # this life of the broker is over, or shuts down


EligibilityOf = Callable[[UUID, int, int, int], Eligibility]
"""Of (topic id, partition, node id, broker epoch)."""

NO_LEADER = -1
UNKNOWN_BROKER_EPOCH = -1


@dataclass(slots=True, frozen=True)
class Assignment:
    """One partition as the applied metadata has it.  `config` is the topic's effective configuration (defaults merged in)."""

    topic: str
    topic_id: UUID
    partition: int
    replicas: tuple[int, ...]
    isr: tuple[int, ...]
    leader: int
    leader_epoch: int
    partition_epoch: int
    config: Mapping[str, str] = field(default_factory=dict)
    elr: tuple[int, ...] = ()
    adding: tuple[int, ...] = ()
    """Among `replicas`, those that joined for a move that is not over: min.insync.replicas does not count on them yet."""

    def does_without(self, node_id: int) -> bool:
        """Another replica leads, and nobody counts on this one to have anything."""
        return self.leader not in (NO_LEADER, node_id) and node_id not in (*self.isr, *self.elr)


@dataclass(slots=True, frozen=True)
class IsrMember:
    """A member of a proposed ISR; `broker_epoch` is the incarnation whose fetches the leader saw, -1 when it saw none.

    The controller refuses a *joining* member whose epoch is not the registered one (docs/semantics.md M4).
    """

    node_id: int
    broker_epoch: int


@dataclass(slots=True, frozen=True)
class IsrProposal:
    """A compare-and-set of the ISR: valid only at exactly this (leader_epoch, partition_epoch)."""

    leader_epoch: int
    partition_epoch: int
    isr: tuple[IsrMember, ...]


@dataclass(slots=True, frozen=True)
class IsrChange:
    """An IsrProposal with the name of its partition: one element of the batched alter-partition call."""

    topic: str
    topic_id: UUID
    partition: int
    leader_epoch: int
    partition_epoch: int
    isr: tuple[IsrMember, ...]


@dataclass(slots=True, frozen=True)
class IsrResult:
    """The controller's answer to one IsrChange.  With error NONE the other fields are the partition's new state."""

    topic: str
    partition: int
    error: ErrorCode
    leader: int = NO_LEADER
    leader_epoch: int = -1
    partition_epoch: int = -1
    isr: tuple[int, ...] = ()
