"""One group shard behind a runtime, asked by members of consumer groups (KIP-848)."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, cast
from uuid import UUID

from tidegate.coordinator.group.classic.events import ClassicGroupConfig
from tidegate.coordinator.group.consumer.events import (
    ConsumerGroupConfig,
    ConsumerGroupHeartbeat,
    DescribeConsumerGroup,
    DescribeConsumerGroupReply,
)
from tidegate.coordinator.group.consumer.group import ConsumerGroup
from tidegate.coordinator.group.events import GroupConfig
from tidegate.coordinator.group.shard import GroupShard

from .coordinator_doubles import Catalog, Driver, MemoryLog
from .replayed_state import checked

G = "readers"
SESSION_MS, REBALANCE_MS = 45_000, 60_000
T = UUID(int=1)  # the first topic of a Catalog


def numbers(partitions: Iterable[tuple[UUID, int]] | None, topic: UUID = T) -> list[int] | None:
    """The partitions of one topic, in order."""
    return None if partitions is None else sorted(number for each, number in partitions if each == topic)


def owned(*partitions: int, topic: UUID = T) -> frozenset[tuple[UUID, int]]:
    return frozenset((topic, number) for number in partitions)


class Consumers(Driver):
    def __init__(
        self,
        catalog: Catalog | None = None,
        *,
        log: MemoryLog | None = None,
        now_ms: int = 1_000_000,
        **config: Any,
    ) -> None:
        self.catalog = catalog or Catalog(flights=4)
        settings = GroupConfig(
            classic=ClassicGroupConfig(initial_rebalance_delay_ms=0), consumer=ConsumerGroupConfig(**config)
        )
        super().__init__(
            lambda partition, epoch: checked(self.make_shard(settings), self.violations),
            log=log,
            now_ms=now_ms,
        )
        self.load(epoch=1 if log is None else log.epochs[0] + 1)

    def make_shard(self, settings: GroupConfig) -> GroupShard:
        return GroupShard(settings, self.catalog)

    def beat(self, member_id: str, epoch: int, group_id: str = G, **fields: Any) -> Any:
        return self.ask(ConsumerGroupHeartbeat(group_id, member_id, epoch, **fields))

    def join(self, member_id: str, *topics: str, **fields: Any) -> Any:
        answers = {
            "rebalance_timeout_ms": REBALANCE_MS,
            "topic_names": topics or ("flights",),
            "owned": frozenset(),
        }
        return self.beat(member_id, 0, **cast("dict[str, Any]", answers | fields))

    def settle(self, *member_ids: str) -> None:
        """Every member follows the coordinator's answers until no answer changes."""
        for _ in range(10):
            for member_id in member_ids:
                current = self.group.current[member_id]
                self.beat(member_id, current.epoch, owned=current.assigned)
        assert self.describe().state.value == "Stable"

    def describe(self) -> DescribeConsumerGroupReply:
        found = self.ask(DescribeConsumerGroup(G))
        assert isinstance(found, DescribeConsumerGroupReply), found
        return found

    def assigned(self, member_id: str, topic: UUID = T) -> list[int] | None:
        return numbers(self.group.current[member_id].assigned, topic)

    @property
    def shard(self) -> GroupShard:
        (_, _, shard), *_ = self.runtime.shards()
        assert isinstance(shard, GroupShard)
        return shard

    @property
    def group(self) -> ConsumerGroup:
        return self.shard.groups.consumers.groups[G]


def contents(group: ConsumerGroup) -> dict[str, Any]:
    """All that is durable or derived of a group, for comparison."""
    return vars(group)
