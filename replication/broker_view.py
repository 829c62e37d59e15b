"""What replication asks of its broker, and what it reports to it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from ..controller.state.eligibility import Eligibility
from ..storage.log.log import Log
from .fetching.client_sessions import TopicNameOf
from .fetching.nearby import RackOf
from .partition.assignment import EligibilityOf


@dataclass(slots=True, frozen=True)
class BrokerView:
    """Questions that the broker answers at once, from its registration, the metadata and its disks."""

    broker_epoch: Callable[[], int] = lambda: -1
    """The epoch of the node's registration, which its fetches as a follower carry."""
    holds_session: Callable[[], bool] = lambda: True
    """Whether the session with the controller is not over, by the clock."""
    partition_exists: Callable[[str, int], bool] = lambda _topic, _partition: False
    """Whether the partition is in the applied metadata."""
    is_out_of_room: Callable[[str, int], bool] = lambda _topic, _partition: False
    """Whether the rest of the partition's disk is reserved, so that the partition takes no records."""
    eligibility_of: EligibilityOf = lambda _topic_id, _partition, _node_id, _broker_epoch: Eligibility.YES
    topic_name_of: TopicNameOf = lambda _topic_id: None
    rack_of: RackOf | None = None
    """None: clients read from leaders only."""


def _ignore(*_event: object) -> None:
    pass


def _raise(error: BaseException) -> None:
    raise error


@dataclass(slots=True, frozen=True)
class PartitionListener:
    """Called with the changes of this node's replicas; `ReplicaManager` says in which order."""

    on_elected: Callable[[str, int, int, Log], None] = _ignore
    """(topic, partition, leader epoch, log): this node leads the partition in a new epoch."""
    on_resigned: Callable[[str, int, int], None] = _ignore
    """(topic, partition, leader epoch): it does not lead it."""
    on_high_watermark: Callable[[str, int, int], None] = _ignore
    """(topic, partition, high watermark)."""
    on_offline: Callable[[str, int, str], None] = _ignore
    """(topic, partition, reason); the log line is written already."""
    on_failure: Callable[[BaseException], None] = _raise
    """A defect ended a task, or, with `ReplicationConfig.validate`, an invariant does not hold: answers could
    be wrong, and the node ends."""
