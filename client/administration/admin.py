"""The asyncio admin client: topics, configurations, groups, transactions, offsets, the cluster itself.

    async with Admin("127.0.0.1:9092") as admin:
        await admin.create_topics([NewTopic("flights", partitions=12, replication_factor=3)])

Methods return frozen values; when one item fails, the error names it.  The client repeats a request that
changes something only when the first attempt certainly had no effect, or when "already exists" (after a lost
answer) means success.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, Final

from tidegate.client.connecting.cluster import Backoff, Cluster, CoordinatorKind, require_none, top_level_code
from tidegate.client.connecting.errors import ConnectionFailed, RequestError, error_for
from tidegate.client.connecting.metadata import TopicView
from tidegate.client.requests.describe_transactions import decode_described_transactions
from tidegate.client.requests.offset_requests import (
    EARLIEST,
    LATEST,
    OffsetAtTime,
    committed_offsets,
    list_offsets,
)
from tidegate.client.requests.record_deletion import delete_records
from tidegate.client.requests.transaction_requests import CommittedOffset, Offsets
from tidegate.runtime.clock import Clock, SystemClock
from tidegate.wire.api import ApiKey
from tidegate.wire.errors import ErrorCode, KafkaError

from . import group_admin, operations
from .descriptions import (
    ClusterDescription,
    ConfigEntry,
    GroupListing,
    NewTopic,
    ProducerDescription,
    TopicDescription,
    TransactionDescription,
    TransactionListing,
)
from .group_descriptions import GroupDescription, describe_group
from .hanging_transactions import IDLE_MS, HangingTransaction, abort_hanging, find_hanging
from .operations import DataFolder, FeatureLevel, PartitionMove, RegisteredBroker

TOPIC_RESOURCE: Final = 2
DEFAULT_CONFIG_SOURCE: Final = 5
SET_CONFIG: Final = 0
DELETE_CONFIG: Final = 1
# The lowest versions that have the fields used here.
LIST_GROUPS_BY_STATE: Final = 4
LIST_GROUPS_BY_TYPE: Final = 5
LIST_TRANSACTIONS_BY_DURATION: Final = 1
_NONE: Final[Mapping[str, str]] = {}


class Admin:
    """See the module's text.  `timeout_s` bounds each call, retries included."""

    def __init__(
        self,
        bootstrap: str,
        *,
        client_id: str = "tidegate-admin",
        timeout_s: float = 30.0,
        clock: Clock | None = None,
    ) -> None:
        self._clock: Clock = clock if clock is not None else SystemClock()
        self._timeout_s = timeout_s
        self._cluster = Cluster(
            bootstrap, client_id=client_id, clock=self._clock, request_timeout_s=timeout_s
        )

    async def start(self) -> None:
        try:
            await self._cluster.start()
        except BaseException:
            await self._cluster.close()
            raise

    async def close(self) -> None:
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
        fields = {
            "topics": [
                {
                    "name": topic.name,
                    "num_partitions": topic.partitions,
                    "replication_factor": topic.replication_factor,
                    "assignments": [],
                    "configs": [{"name": name, "value": str(value)} for name, value in topic.config.items()],
                }
                for topic in topics
            ],
            "timeout": int(self._timeout_s * 1000),
            "validate_only": False,
        }
        await self._change(
            ApiKey.CREATE_TOPICS, fields, "topics", "creating topic", ErrorCode.TOPIC_ALREADY_EXISTS
        )
        if wait:
            await self._wait_for_leaders([topic.name for topic in topics])

    async def delete_topics(self, names: Sequence[str]) -> None:
        """Deletes topics with all their data."""
        fields = {"topic_names": list(names), "timeout": int(self._timeout_s * 1000)}
        await self._change(
            ApiKey.DELETE_TOPICS,
            fields,
            "responses",
            "deleting topic",
            ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
            highest=5,
        )
        self._cluster.view = self._cluster.view.without_topics(names)

    async def delete_records(self, before: Mapping[tuple[str, int], int]) -> dict[tuple[str, int], int]:
        """Removes the records of partitions below an offset (-1: all committed ones) and returns the new log
        start offsets.

        Raises RequestError for a topic that is only compacted, and for an offset above the high watermark.
        """
        return await delete_records(self._cluster, before, self._timeout_s)

    async def create_partitions(self, counts: Mapping[str, int], *, wait: bool = True) -> None:
        """Raises topics to `count` partitions.  Keys then go to other partitions than before."""
        fields = {
            "topics": [{"name": name, "count": count, "assignments": None} for name, count in counts.items()],
            "timeout": int(self._timeout_s * 1000),
            "validate_only": False,
        }
        await self._change(ApiKey.CREATE_PARTITIONS, fields, "results", "adding partitions to topic", None)
        if wait:
            await self._wait_for_leaders(list(counts), counts)

    async def list_topics(self, *, internal: bool = False) -> list[TopicView]:
        """All topics, by name."""
        await self._refresh(None)
        views = sorted(self._cluster.view.topics.values(), key=lambda view: view.name)
        return [view for view in views if internal or not view.internal]

    async def describe_topics(self, names: Iterable[str], *, config: bool = True) -> list[TopicDescription]:
        """Partitions and settings.  Raises RequestError for a topic that does not exist."""
        wanted = list(names)
        self._cluster.view = self._cluster.view.without_topics(wanted)  # a recreated topic's epochs restart
        await self._refresh(wanted)
        views: list[TopicView] = []
        for name in wanted:
            view = self._cluster.view.topics.get(name)
            code = view.error if view is not None else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            if view is None or code is not ErrorCode.NONE:
                error = error_for(code, f"topic {name!r}")
                raise RequestError(code, error.message)
            views.append(view)
        settings = await self.describe_configs(wanted) if config else {}
        return [
            TopicDescription(
                view.name, view.internal, list(view.partitions.values()), settings.get(view.name, ())
            )
            for view in views
        ]

    async def describe_configs(self, names: Iterable[str]) -> dict[str, list[ConfigEntry]]:
        """The settings of topics, defaults included."""
        resources = [
            {"resource_type": TOPIC_RESOURCE, "resource_name": name, "configuration_keys": None}
            for name in names
        ]
        answer = await self._ask_any(ApiKey.DESCRIBE_CONFIGS, {"resources": resources})
        found: dict[str, list[ConfigEntry]] = {}
        for result in answer.results:
            code = ErrorCode.from_wire(int(result.error_code))
            require_none(code, f"settings of topic {result.resource_name!r}", result.error_message)
            found[result.resource_name] = [
                ConfigEntry(
                    entry.name,
                    entry.value,
                    int(entry.config_source) == DEFAULT_CONFIG_SOURCE,
                    bool(entry.read_only),
                )
                for entry in result.configs
            ]
        return found

    async def alter_config(self, name: str, changes: Mapping[str, str | None]) -> None:
        """Sets a topic's settings; None resets a setting to its default."""
        configs = [
            {"name": key, "config_operation": DELETE_CONFIG if value is None else SET_CONFIG, "value": value}
            for key, value in changes.items()
        ]
        resources = [{"resource_type": TOPIC_RESOURCE, "resource_name": name, "configs": configs}]
        fields = {"resources": resources, "validate_only": False}
        answer = await self._ask_controller(ApiKey.INCREMENTAL_ALTER_CONFIGS, fields)
        for result in answer.responses:
            code = ErrorCode.from_wire(int(result.error_code))
            require_none(code, f"settings of topic {result.resource_name!r}", result.error_message)

    async def _change(
        self,
        api_key: ApiKey,
        fields: Mapping[str, Any],
        results: str,
        what: str,
        settled: ErrorCode | None,
        *,
        highest: int | None = None,
    ) -> None:
        """Sends one change to the controller.  The code `settled` means success when an earlier attempt's
        answer was lost."""
        deadline_s, backoff, lost = self._deadline_s(), Backoff(self._clock), False
        while True:
            said: str | None = None
            try:
                answer = await self._cluster.ask_controller(api_key, fields, highest=highest)
            except ConnectionFailed as error:
                code, said, lost = error.code, error.message, True
                if settled is None:
                    raise
            else:
                code = ErrorCode.NONE
                refusals: list[KafkaError] = []
                done: list[str] = []
                for result in getattr(answer, results):
                    found = ErrorCode.from_wire(int(result.error_code))
                    if found is ErrorCode.NONE or (lost and found is settled):
                        done.append(result.name)
                    elif found not in (ErrorCode.NOT_CONTROLLER, ErrorCode.REQUEST_TIMED_OUT):
                        refusals.append(
                            error_for(
                                found, f"{what} {result.name!r}", getattr(result, "error_message", None)
                            )
                        )
                    else:
                        code, lost = found, lost or found is ErrorCode.REQUEST_TIMED_OUT
                if refusals:
                    raise _refusal(refusals, done)
                if code is ErrorCode.NONE:
                    return
                await self._cluster.refresh(())
            await self._cluster.pause(backoff, deadline_s, code, what, said)

    async def _wait_for_leaders(self, names: Sequence[str], counts: Mapping[str, int] | None = None) -> None:
        deadline_s, backoff = self._deadline_s(), Backoff(self._clock)
        while True:
            await self._cluster.refresh(names)
            views = [self._cluster.view.topics.get(name) for name in names]
            if all(
                view is not None
                and view.partitions
                and len(view.partitions) >= (counts or {}).get(view.name, 1)
                and all(self._cluster.view.leader(view.name, number) >= 0 for number in view.partitions)
                for view in views
            ):
                return
            await self._cluster.pause(
                backoff,
                deadline_s,
                ErrorCode.LEADER_NOT_AVAILABLE,
                f"waiting for the leaders of {', '.join(names)}",
            )

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
        return await operations.list_reassignments(self._cluster, self._timeout_s)

    async def describe_features(self) -> list[FeatureLevel]:
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
        found: dict[str, GroupListing] = {}
        fields = {"states_filter": sorted(states), "types_filter": sorted(types)}
        lowest = LIST_GROUPS_BY_TYPE if types else LIST_GROUPS_BY_STATE if states else 0
        for _, answer in await self._ask_all(ApiKey.LIST_GROUPS, fields, lowest=lowest):
            require_none(top_level_code(answer), "listing groups")
            for group in answer.groups:
                state, kind = getattr(group, "group_state", ""), getattr(group, "group_type", "")
                found[group.group_id] = GroupListing(group.group_id, group.protocol_type, state, kind)
        return [found[name] for name in sorted(found)]

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
        found: list[TransactionListing] = []
        fields = {
            "state_filters": list(states),
            "producer_id_filters": sorted(producer_ids),
            "duration_filter": running_for_ms,
        }
        lowest = LIST_TRANSACTIONS_BY_DURATION if running_for_ms >= 0 else 0
        for node_id, answer in await self._ask_all(ApiKey.LIST_TRANSACTIONS, fields, lowest=lowest):
            require_none(top_level_code(answer), "listing transactions")
            found += [
                TransactionListing(
                    entry.transactional_id, int(entry.producer_id), entry.transaction_state, node_id
                )
                for entry in answer.transaction_states
            ]
        return sorted(found, key=lambda entry: entry.transactional_id)

    async def describe_transaction(self, transactional_id: str) -> TransactionDescription:
        """One transactional id.  Raises RequestError when no coordinator knows it."""

        (entry,) = await self._cluster.ask_coordinator(
            CoordinatorKind.TRANSACTION,
            transactional_id,
            ApiKey.DESCRIBE_TRANSACTIONS,
            {"transactional_ids": [transactional_id]},
            deadline_s=self._deadline_s(),
            code_of=lambda found: found[0].error_code,
            decode=decode_described_transactions,
        )
        require_none(entry.error_code, f"transactional id {transactional_id!r}")
        coordinator = await self._cluster.coordinator(
            CoordinatorKind.TRANSACTION, transactional_id, self._deadline_s()
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

    async def describe_producers(self, partitions: Iterable[tuple[str, int]]) -> list[ProducerDescription]:
        """The producer state of the partitions' leaders: open transactions, sequence numbers."""
        wanted = sorted(partitions)
        await self._refresh({topic for topic, _ in wanted})
        by_leader: defaultdict[int, dict[str, list[int]]] = defaultdict(dict)
        for topic, number in wanted:
            leader = self._cluster.view.leader(topic, number)
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
            answer = await self._cluster.ask(leader, ApiKey.DESCRIBE_PRODUCERS, fields)
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

    async def hanging_transactions(
        self, partitions: Collection[tuple[str, int]], *, idle_ms: int = IDLE_MS
    ) -> list[HangingTransaction]:
        """Open transactions of these partitions that no coordinator will end (KIP-664)."""
        return await find_hanging(self, partitions, self._clock.wall_ms(), idle_ms)

    async def abort_hanging_transaction(self, hanging: HangingTransaction) -> None:
        """Aborts a transaction that `hanging_transactions` found."""
        await abort_hanging(self._cluster, hanging)

    # ---- cluster and offsets -------------------------------------------------------------------------------

    async def describe_cluster(self) -> ClusterDescription:
        """The brokers that are registered and the active controller."""
        await self._refresh(())
        view = self._cluster.view
        return ClusterDescription(
            view.cluster_id, view.controller_id, [view.brokers[node] for node in sorted(view.brokers)]
        )

    @property
    def features(self) -> Mapping[str, int]:
        """The finalised feature levels, for example {'transaction.version': 2}."""
        return self._cluster.features

    async def beginning_offsets(self, partitions: Iterable[tuple[str, int]]) -> dict[tuple[str, int], int]:
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

    # ---- requests ------------------------------------------------------------------------------------------

    async def _refresh(self, topics: Iterable[str] | None) -> None:
        await self._cluster.refresh(topics)

    async def _ask_any(self, api_key: ApiKey, fields: Mapping[str, Any]) -> Any:
        return await self._cluster.ask_any(api_key, fields)

    async def _ask_controller(self, api_key: ApiKey, fields: Mapping[str, Any]) -> Any:
        return await self._cluster.ask_controller(api_key, fields)

    async def _ask_all(
        self, api_key: ApiKey, fields: Mapping[str, Any], *, lowest: int = 0
    ) -> list[tuple[int, Any]]:
        """The answers of all brokers; raises when one cannot be reached, since a partial list would look
        complete."""
        await self._refresh(())
        nodes = sorted(self._cluster.view.brokers)
        answers = await asyncio.gather(*(self._ask_loaded(node, api_key, fields, lowest) for node in nodes))
        return list(zip(nodes, answers, strict=True))

    async def _ask_loaded(self, node_id: int, api_key: ApiKey, fields: Mapping[str, Any], lowest: int) -> Any:
        """One broker's answer, after its coordinators have loaded their state."""
        deadline_s, backoff = self._deadline_s(), Backoff(self._clock)
        while True:
            try:
                answer = await self._cluster.ask(node_id, api_key, fields, lowest=lowest)
            except ConnectionFailed as error:
                message = (
                    f"a part of the list is known to node {node_id} only, which does not answer "
                    f"({error.message})"
                )
                raise ConnectionFailed(error.code, message) from None
            code = top_level_code(answer)
            if code is not ErrorCode.COORDINATOR_LOAD_IN_PROGRESS:
                return answer
            await self._cluster.pause(backoff, deadline_s, code, f"{api_key.name} at node {node_id}")


def _refusal(refusals: Sequence[KafkaError], done: Sequence[str]) -> KafkaError:
    """One error for a request of several items, with the code of the first failed one."""
    first = refusals[0]
    message = "; ".join(refusal.message for refusal in refusals)
    if done:
        message += f"; it was done for {', '.join(done)}"
    # The broker has decided: the client must not repeat the request, even if the code is retriable.
    return RequestError(first.code, message) if first.code.retriable else type(first)(first.code, message)


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
