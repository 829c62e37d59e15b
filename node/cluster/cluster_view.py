"""The cluster by the metadata that this broker has applied: topics, leaders and brokers, for all other parts
of the node.

The broker acts only on metadata that it has applied itself, in order.  All methods are called on the node's
loop.
"""

from __future__ import annotations

from typing import Final
from uuid import UUID

from ...controller.planning.brokers.reachability import Life
from ...controller.remote.client import ControllerClient
from ...controller.remote.metadata_follower import MetadataFollower
from ...controller.state.cluster_state import ClusterState
from ...controller.state.eligibility import Eligibility, isr_eligibility
from ...runtime.clock import Clock
from ...wire.errors import ErrorCode, KafkaError

# How long a coordinator waits until it has applied the creation of its state topic.
STATE_TOPIC_WAIT_S: Final = 1.0


class ClusterView:
    """`serving`: this node has applied the metadata up to its own registration.  Older metadata may name it
    leader although it lost records in an unclean stop."""

    def __init__(
        self, node_id: int, metadata: MetadataFollower, controller: ControllerClient, clock: Clock
    ) -> None:
        self.node_id = node_id
        self.serving = False
        self._metadata = metadata
        self._controller = controller
        self._clock = clock

    @property
    def state(self) -> ClusterState:
        return self._metadata.state

    @property
    def metadata_index(self) -> int:
        return self._metadata.applied_index

    async def wait_for_index(self, index: int, timeout_s: float) -> None:
        """Returns when the metadata are applied up to `index`.  Raises TimeoutError."""
        await self._metadata.wait_for_index(index, timeout_s)

    @property
    def controller_id(self) -> int:
        """The active controller's node id, -1 when this broker does not know it."""
        return -1 if self._controller.active_id is None else self._controller.active_id

    # --- brokers --------------------------------------------------------------------------------------------

    def rack_of(self, node_id: int) -> str:
        """The rack of a broker; empty when it has none or is fenced."""
        broker = self.state.brokers.get(node_id)
        return "" if broker is None or broker.fenced else broker.rack

    def is_registered(self, life: Life) -> bool:
        broker = self.state.brokers.get(life[0])
        return broker is not None and broker.broker_epoch == life[1]

    def kafka_address(self, node_id: int) -> tuple[str, int]:
        """Raises KafkaError BROKER_NOT_AVAILABLE."""
        found = self.state.brokers.get(node_id)
        if found is None:
            raise KafkaError(ErrorCode.BROKER_NOT_AVAILABLE, f"node {node_id} is not registered")
        return found.kafka_host, found.kafka_port

    def isr_eligibility(self, topic_id: UUID, partition: int, node_id: int, broker_epoch: int) -> Eligibility:
        """Whether the controller would accept this follower as a new ISR member, by the metadata that this
        node has applied."""
        return isr_eligibility(
            self.state.brokers.get(node_id), broker_epoch, replica=(topic_id.bytes, partition)
        )

    # --- topics ---------------------------------------------------------------------------------------------

    def topic_name(self, topic_id: UUID) -> str | None:
        topic = self.state.topic_by_id(topic_id)
        return topic.name if topic else None

    def partition_count(self, topic: str) -> int:
        """0 when the topic does not exist."""
        found = self.state.topics.get(topic)
        return len(found.partitions) if found else 0

    async def state_partitions(self, topic: str) -> int:
        """The number of partitions of a state topic.  Waits a moment for the topic's creation, because
        another node that has applied it may have sent the client here; then raises
        COORDINATOR_NOT_AVAILABLE."""
        deadline_s = self._clock.monotonic() + STATE_TOPIC_WAIT_S
        while (count := self.partition_count(topic)) == 0:
            try:
                await self.wait_for_index(self.metadata_index + 1, deadline_s - self._clock.monotonic())
            except TimeoutError:
                raise KafkaError(ErrorCode.COORDINATOR_NOT_AVAILABLE, f"{topic} does not exist yet") from None
        return count

    def leads(self, topic: str, partition: int) -> bool:
        """Whether this node leads the partition by the applied metadata.  Its log may not be open yet."""
        found = self.state.topics.get(topic)
        place = found.partitions.get(partition) if found is not None and self.serving else None
        return place is not None and place.leader == self.node_id

    def in_sync_everywhere(self) -> bool:
        """True when this node is in the ISR of each of its partitions that has a leader.  A partition that a
        reassignment moves here does not count: the move may take long, and no other replica has been removed
        yet."""
        return all(
            self.node_id in partition.isr
            for topic in self.state.topics.values()
            for partition in topic.partitions.values()
            if self.node_id in partition.settled_replicas and partition.leader >= 0
        )
