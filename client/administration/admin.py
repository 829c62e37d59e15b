"""The asyncio admin client: topics, configurations, groups, transactions, offsets, the cluster itself.

    async with Admin("127.0.0.1:9092") as admin:
        await admin.create_topics([NewTopic("flights", partitions=12, replication_factor=3)])

Methods return frozen values; when one item fails, the error names it.  Admin is the one door, as in Kafka's
clients, and decides nothing: the requests stand in one module a subject, `topic_admin`, `group_admin`,
`transaction_admin`, `operations` (brokers, moves, features).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence

from ...runtime.clock import Clock, SystemClock
from ...security.client_security import ClientSecurity
from ..connecting.cluster import Cluster
from ..connecting.metadata import TopicView
from ..consuming.cut import Cut
from ..requests.offset_requests import (
    EARLIEST,
    LATEST,
    OffsetAtTime,
    committed_offsets,
    list_offsets,
)
from ..requests.record_deletion import delete_records
from ..requests.transaction_requests import CommittedOffset, Offsets
from . import group_admin, operations, topic_admin, transaction_admin
from .descriptions import (
    ClusterDescription,
    ConfigEntry,
    CutListing,
    GroupListing,
    JobDescription,
    JobListing,
    NewTopic,
    PinnedCut,
    ProducerDescription,
    TopicDescription,
    TransactionDescription,
    TransactionListing,
)
from .group_descriptions import GroupDescription, describe_group
from .hanging_transactions import IDLE_MS, HangingTransaction, abort_hanging, find_hanging
from .operations import DataFolder, FeatureLevel, PartitionMove, RegisteredBroker


class Admin:
    """See the module's text.  `timeout_s` bounds each call, retries included."""

    def __init__(
        self,
        bootstrap: str,
        *,
        client_id: str = "tidegate-admin",
        timeout_s: float = 30.0,
        clock: Clock | None = None,
        security: ClientSecurity | None = None,
    ) -> None:
        self._clock: Clock = clock if clock is not None else SystemClock()
        self._timeout_s = timeout_s
        self._cluster = Cluster(
            bootstrap, client_id=client_id, clock=self._clock, request_timeout_s=timeout_s, security=security
        )

    async def start(self) -> None:
        """Connects to one of the bootstrap addresses.  Raises ConnectionFailed when none answers."""
        try:
            await self._cluster.start()
        except BaseException:
            await self._cluster.close()
            raise

    async def close(self) -> None:
        """Closes all connections; a second call does nothing."""
        await self._cluster.close()

    async def __aenter__(self) -> Admin:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    def _deadline_s(self) -> float:
        return self._clock.monotonic() + self._timeout_s

    # ---- topics --------------------------------------------------------------------------------------------

    async def create_topics(self, topics: Sequence[NewTopic], *, wait: bool = True) -> None:
        """Creates topics; with `wait`, returns when the node that this client asks knows a leader of every
        partition.

        A topic that the controller refuses does not prevent the others: the error says which topics were
        created.
        """
        await topic_admin.create_topics(self._cluster, topics, self._timeout_s, wait=wait)

    async def delete_topics(self, names: Sequence[str]) -> None:
        """Deletes topics with all their data."""
        await topic_admin.delete_topics(self._cluster, names, self._timeout_s)

    async def delete_records(self, before: Mapping[tuple[str, int], int]) -> dict[tuple[str, int], int]:
        """Removes the records of partitions below an offset (-1: all committed ones) and returns the new log
        start offsets.

        Raises RequestError for a topic that is only compacted, and for an offset above the high watermark.
        """
        return await delete_records(self._cluster, before, self._timeout_s)

    async def create_partitions(self, counts: Mapping[str, int], *, wait: bool = True) -> None:
        """Raises topics to `count` partitions.  Keys then go to other partitions than before."""
        await topic_admin.create_partitions(self._cluster, counts, self._timeout_s, wait=wait)

    async def list_topics(self, *, internal: bool = False) -> list[TopicView]:
        """All topics, by name."""
        return await topic_admin.list_topics(self._cluster, internal=internal)

    async def describe_topics(self, names: Iterable[str], *, config: bool = True) -> list[TopicDescription]:
        """Partitions and settings.  Raises RequestError for a topic that does not exist."""
        return await topic_admin.describe_topics(self._cluster, names, config=config)

    async def describe_configs(self, names: Iterable[str]) -> dict[str, list[ConfigEntry]]:
        """The settings of topics, defaults included."""
        return await topic_admin.describe_configs(self._cluster, names)

    async def alter_config(self, name: str, changes: Mapping[str, str | None]) -> None:
        """Sets a topic's settings; None resets a setting to its default."""
        await topic_admin.alter_config(self._cluster, name, changes)

    # ---- operations ----------------------------------------------------------------------------------------

    async def reassign_partitions(self, targets: Mapping[tuple[str, int], Sequence[int] | None]) -> None:
        """Begins to move partitions to these brokers, the preferred leader first; None ends a move and goes
        back."""
        await operations.reassign_partitions(self._cluster, targets, self._timeout_s)

    async def elect_leaders(self, partitions: Iterable[tuple[str, int]], *, unclean: bool = False) -> None:
        """Elects the preferred replicas; `unclean`: any live replica, where the topic allows it (KIP-460)."""
        await operations.elect_leaders(self._cluster, partitions, unclean=unclean, timeout_s=self._timeout_s)

    async def alter_broker_config(self, node_id: int | None, changes: Mapping[str, str | None]) -> None:
        """Changes settings of running brokers.  A value None resets to the broker's file; a node id None
        means all brokers."""
        await operations.alter_broker_config(self._cluster, node_id, changes)

    async def broker_settings(self, node_id: int | None) -> dict[str, str | None]:
        """The settings of a broker, from its own answer.  A node id None: those set at run time for all
        brokers."""
        return await operations.broker_settings(self._cluster, node_id)

    async def list_reassignments(self) -> list[PartitionMove]:
        """The partitions whose replicas are being moved, with those that come and those that go."""
        return await operations.list_reassignments(self._cluster, self._timeout_s)

    async def describe_features(self) -> list[FeatureLevel]:
        """Each feature with its finalised level and the levels that every node supports."""
        return await operations.describe_features(self._cluster)

    async def update_features(
        self, levels: Mapping[str, int], *, downgrade: bool = False, validate_only: bool = False
    ) -> None:
        """Raises feature levels, or lowers them where that is safe; all or none."""
        changes = {"downgrade": downgrade, "validate_only": validate_only}
        await operations.update_features(self._cluster, levels, self._timeout_s, **changes)

    async def list_brokers(self) -> list[RegisteredBroker]:
        """Every registered broker, fenced ones included."""
        return await operations.list_brokers(self._cluster)

    async def describe_data_folders(self, *, timeout_s: float = 5.0) -> list[DataFolder]:
        """The data folders of every broker that answers within `timeout_s`, with the free bytes of their
        volumes."""
        return await operations.describe_data_folders(self._cluster, timeout_s)

    async def unregister_broker(self, node_id: int) -> None:
        """Removes the registration of a broker that will not return and holds no replica."""
        await operations.unregister_broker(self._cluster, node_id)

    # ---- groups --------------------------------------------------------------------------------------------

    async def list_groups(
        self, states: Collection[str] = (), types: Collection[str] = ()
    ) -> list[GroupListing]:
        """The groups of all coordinators, optionally only those in certain states (KIP-518), or of certain
        types (KIP-848): classic, consumer."""
        return await group_admin.list_groups(self._cluster, states, types, self._timeout_s)

    async def describe_group(self, group_id: str) -> GroupDescription:
        """A group's state and members, of either protocol.  A group that does not exist has the state `Dead`
        and no members."""
        return await describe_group(self._cluster, group_id, self._deadline_s())

    async def group_offsets(self, group_id: str) -> dict[tuple[str, int], CommittedOffset]:
        """Everything that a group has committed."""
        return await committed_offsets(
            self._cluster, group_id, None, require_stable=False, timeout_s=self._timeout_s
        )

    async def delete_group(self, group_id: str) -> None:
        """Deletes an empty group and its offsets."""
        await group_admin.delete_group(self._cluster, group_id, self._timeout_s)

    async def delete_group_offsets(self, group_id: str, partitions: Iterable[tuple[str, int]]) -> None:
        """Deletes a group's committed offsets of partitions that its members do not subscribe to
        (KIP-496)."""
        await group_admin.delete_offsets(self._cluster, group_id, partitions, self._timeout_s)

    async def set_group_offsets(self, group_id: str, offsets: Offsets) -> None:
        """Sets the committed offsets of a group without members."""
        await group_admin.set_offsets(self._cluster, group_id, offsets, self._timeout_s)

    async def remove_group_members(
        self, group_id: str, *, instance_ids: Iterable[str] = (), member_ids: Iterable[str] = ()
    ) -> None:
        """Removes members in one request, static ones by their instance ids (KIP-345); the group
        rebalances."""
        await group_admin.remove_members(self._cluster, group_id, instance_ids, member_ids, self._timeout_s)

    # ---- transactions --------------------------------------------------------------------------------------

    async def list_transactions(
        self, states: Sequence[str] = (), *, producer_ids: Collection[int] = (), running_for_ms: int = -1
    ) -> list[TransactionListing]:
        """The transactional ids of all coordinators, optionally only those in certain states, of certain
        producers, or whose transaction has been running for longer than so many milliseconds (KIP-994)."""
        return await transaction_admin.list_transactions(
            self._cluster, states, self._timeout_s, producer_ids=producer_ids, running_for_ms=running_for_ms
        )

    async def describe_transaction(self, transactional_id: str) -> TransactionDescription:
        """One transactional id.  Raises RequestError when no coordinator knows it."""
        return await transaction_admin.describe_transaction(self._cluster, transactional_id, self._timeout_s)

    async def describe_producers(self, partitions: Iterable[tuple[str, int]]) -> list[ProducerDescription]:
        """The producer state of the partitions' leaders: open transactions, sequence numbers."""
        return await transaction_admin.describe_producers(self._cluster, partitions)

    async def abort_transaction(self, transactional_id: str) -> None:
        """Aborts the open or prepared transaction of an id, and fences its producer; returns when its
        markers are written."""
        await transaction_admin.abort_transaction(self._cluster, transactional_id, self._timeout_s)

    async def hanging_transactions(
        self, partitions: Collection[tuple[str, int]], *, idle_ms: int = IDLE_MS
    ) -> list[HangingTransaction]:
        """Open transactions of these partitions that no coordinator will end (KIP-664)."""
        return await find_hanging(self, partitions, self._clock.wall_ms(), idle_ms)

    async def abort_hanging_transaction(self, hanging: HangingTransaction) -> None:
        """Aborts a transaction that `hanging_transactions` found."""
        await abort_hanging(self._cluster, hanging)

    # ---- jobs ----------------------------------------------------------------------------------------------

    async def list_jobs(self, states: Collection[str] = (), *, sink: str = "") -> list[JobListing]:
        """Job transactions: `open`, `committed` or `aborted` ones (none is named: all), of a sink or all."""
        from . import job_admin  # gRPC is loaded for these alone

        return await job_admin.list_jobs(self._cluster, states, sink, self._timeout_s)

    async def describe_job(self, sink: str, batch: str) -> JobDescription:
        """Raises RequestError when no coordinator knows the job."""
        from . import job_admin  # gRPC is loaded for these alone

        return await job_admin.describe_job(self._cluster, sink, batch, self._timeout_s)

    async def abort_job(self, sink: str, batch: str) -> str:
        """Aborts an open job; returns the first decision, `committed` where that was another one."""
        from . import job_admin  # gRPC is loaded for these alone

        return await job_admin.abort_job(self._cluster, sink, batch, self._timeout_s)

    # ---- cuts ----------------------------------------------------------------------------------------------

    async def take_cut(self, topics: Sequence[str]) -> Cut:
        """A transaction-consistent cut of all partitions of these topics; it waits for no open
        transaction."""
        from . import cut_admin  # gRPC is loaded for these alone

        return await cut_admin.take_cut(self._cluster, topics, self._timeout_s)

    async def pin_cut(self, name: str, what: Sequence[str] | Cut, *, retention_ms: int) -> PinnedCut:
        """Keeps what a cut reads for so long: one that was taken before, or a new one of these topics.
        Raises RequestError OFFSET_OUT_OF_RANGE when a replica has lost something of the former since."""
        from . import cut_admin  # gRPC is loaded for these alone

        return await cut_admin.pin_cut(self._cluster, name, what, retention_ms, self._timeout_s)

    async def describe_cut(self, name: str) -> PinnedCut:
        """Raises RequestError when no cut is pinned under the name."""
        from . import cut_admin  # gRPC is loaded for these alone

        return await cut_admin.describe_cut(self._cluster, name, self._timeout_s)

    async def list_cuts(self) -> list[CutListing]:
        """The pinned cuts, by name."""
        from . import cut_admin  # gRPC is loaded for these alone

        return await cut_admin.list_cuts(self._cluster, self._timeout_s)

    async def unpin_cut(self, name: str) -> bool:
        """Lets go of what the cut reads; False when no cut was pinned under the name."""
        from . import cut_admin  # gRPC is loaded for these alone

        return await cut_admin.unpin_cut(self._cluster, name, self._timeout_s)

    # ---- cluster and offsets -------------------------------------------------------------------------------

    async def describe_cluster(self) -> ClusterDescription:
        """The brokers that are registered and the active controller."""
        await self._cluster.refresh(())
        view = self._cluster.view
        return ClusterDescription(
            view.cluster_id, view.controller_id, [view.brokers[node] for node in sorted(view.brokers)]
        )

    @property
    def features(self) -> Mapping[str, int]:
        """The finalised feature levels, for example {'transaction.version': 2}."""
        return self._cluster.features

    async def beginning_offsets(self, partitions: Iterable[tuple[str, int]]) -> dict[tuple[str, int], int]:
        """(topic, partition) -> the offset at which its log starts."""
        found = await self.offsets_for_times(dict.fromkeys(partitions, EARLIEST))
        return {key: entry.offset for key, entry in found.items()}

    async def end_offsets(
        self, partitions: Iterable[tuple[str, int]], *, read_committed: bool = False
    ) -> dict[tuple[str, int], int]:
        """High watermarks, or last stable offsets at read_committed."""
        found = await self.offsets_for_times(dict.fromkeys(partitions, LATEST), read_committed=read_committed)
        return {key: entry.offset for key, entry in found.items()}

    async def offsets_for_times(
        self,
        times: Mapping[tuple[str, int], int],
        *,
        read_committed: bool = False,
        within_s: float | None = None,
    ) -> dict[tuple[str, int], OffsetAtTime]:
        """The first record at or after a time in milliseconds (offset -1: none).  With `within_s`, partitions
        whose leaders have not answered by then are left out; without it that is an error."""
        timeout_s, partly = (self._timeout_s, False) if within_s is None else (within_s, True)
        return await list_offsets(
            self._cluster, times, read_committed=read_committed, timeout_s=timeout_s, partly=partly
        )
