"""The values that replication takes from the metadata and sends to the controller: `Assignment`, and ISR
changes with their results.

All of them are immutable.  `Assignment` mirrors the controller's PartitionState, so that replication does not
import it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from uuid import UUID

from ...controller.state.eligibility import Eligibility
from ...storage.log.pins import Pin
from ...wire.errors import ErrorCode

EligibilityOf = Callable[[UUID, int, int, int], Eligibility]
"""Of (topic id, partition, node id, broker epoch): whether the broker may join the ISR, by the applied
metadata."""

NO_LEADER = -1
UNKNOWN_BROKER_EPOCH = -1


@dataclass(slots=True, frozen=True)
class Assignment:
    """One partition as the applied metadata has it.

    `config` has the topic's own settings, over those that the cluster's dynamic broker settings give to
    topics.  It does *not* have the built-in defaults: a reader of a setting that is not in it supplies the
    default (as `min_insync_replicas`).
    """

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
    """The replicas that a reassignment adds and has not finished: min.insync.replicas does not count them
    yet."""
    pins: tuple[Pin, ...] = ()

    @property
    def min_insync_replicas(self) -> int:
        """The topic's `min.insync.replicas`; 1 when the configuration does not say, or says what only a later
        version knows, as the controller reads it (`TopicState.min_in_sync_replicas`)."""
        text = self.config.get("min.insync.replicas", "1").strip()
        return int(text) if text.isascii() and text.isdigit() and len(text) < 10 else 1

    def does_without(self, node_id: int) -> bool:
        """Another replica leads, and this one is neither in the ISR nor an eligible leader: no committed
        record depends on it."""
        return self.leader not in (NO_LEADER, node_id) and node_id not in (*self.isr, *self.elr)


@dataclass(slots=True, frozen=True)
class IsrMember:
    """A member of a proposed ISR; `broker_epoch` is the one in the member's fetches, -1 when the leader saw
    none.

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
    """The controller's answer to one IsrChange.  With error NONE the other fields are the partition's new
    state."""

    topic: str
    partition: int
    error: ErrorCode
    leader: int = NO_LEADER
    leader_epoch: int = -1
    partition_epoch: int = -1
    isr: tuple[int, ...] = ()
