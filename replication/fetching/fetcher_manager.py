"""The fetchers of this node: one for each leader that its replicas follow.  Kafka's ReplicaFetcherManager."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence

from ...runtime.calm_logs import RateLimitedLines
from ...runtime.clock import Clock
from ...runtime.tasks import OnFailure
from ..replica.catch_up_throttle import CatchUpThrottle
from ..replica.replica import Replica, TakeOffline
from .configuration import ReplicationLimits
from .fetcher import FetcherLimits, LeaderFetcher, TransportFactory


class FetcherManager:
    """A replica is at one fetcher at most: that of its leader."""

    def __init__(
        self,
        node_id: int,
        clock: Clock,
        transport_factory: TransportFactory,
        config: FetcherLimits,
        limits: ReplicationLimits,
        *,
        broker_epoch: Callable[[], int],
        flush: Callable[[Sequence[Replica]], Awaitable[None]],
        take_offline: TakeOffline,
        require_room: Callable[[Replica], None],
        on_failure: OnFailure,
    ) -> None:
        """`flush` makes durable what the next fetch acknowledges; `require_room` raises KAFKA_STORAGE_ERROR
        for a replica whose disk is full."""
        self._node_id = node_id
        self._clock = clock
        self._transport_factory = transport_factory
        self._config = config
        self._broker_epoch = broker_epoch
        self._flush = flush
        self._take_offline = take_offline
        self._require_room = require_room
        self._on_failure = on_failure
        self._throttle = CatchUpThrottle(lambda: limits.follower_throttled_bytes_per_s)
        self.by_leader: dict[int, LeaderFetcher] = {}

    def follow(self, replica: Replica) -> None:
        """Fetches the replica from its leader."""
        fetcher = self.by_leader.get(replica.leader_id)
        if fetcher is None:
            fetcher = self.by_leader[replica.leader_id] = self._start(replica.leader_id)
        fetcher.assign(replica)

    def _start(self, leader_id: int) -> LeaderFetcher:
        fetcher = LeaderFetcher(
            self._node_id, leader_id, self._clock, self._transport_factory(leader_id), self._config,
            broker_epoch=self._broker_epoch, flush=self._flush, take_offline=self._take_offline,
            require_room=self._require_room, throttle=self._throttle, on_failure=self._on_failure,
        )  # fmt: skip
        fetcher.start()
        return fetcher

    def stop(self, replica: Replica) -> None:
        """The replica follows no leader."""
        for fetcher in self.by_leader.values():
            fetcher.remove(replica.key)

    def lines(self) -> list[RateLimitedLines]:
        """The rate-limited log lines of all fetchers."""
        return [fetcher.lines for fetcher in self.by_leader.values()]

    async def close(self) -> None:
        await asyncio.gather(*(fetcher.close() for fetcher in self.by_leader.values()))
        self.by_leader.clear()
