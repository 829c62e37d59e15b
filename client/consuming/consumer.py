"""The asyncio consumer: alone (`assign`) or in a group (`subscribe`), at read_committed by default.

    async with Consumer("127.0.0.1:9092", group_id="billing") as consumer:
        consumer.subscribe(["payments"])
        async for record in consumer:
            ...

`poll` (and `async for`) joins and rebalances the group, calls the rebalance listener, commits automatically
and finds positions: everything that the application must not miss.  Fetches and heartbeats run in their own
tasks.

An automatic commit stores the positions of the *delivered* records at the beginning of a later poll: after a
crash, the consumer reads again the records that the application has not finished (at least once).  For
exactly once, switch automatic commits off and send the offsets with the producer:
`producer.send_offsets_to_transaction(consumer.positions(), consumer.group_metadata())`.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Unpack

from ...runtime import logs
from ...runtime.clock import Clock, SystemClock
from ...wire.errors import ErrorCode
from ..connecting.cluster import Cluster
from ..connecting.errors import FatalError, GroupChanged, NoOffset, RequestError, RetriableError
from ..requests.assignors import by_topic
from ..requests.offset_requests import (
    EARLIEST,
    LATEST,
    OffsetAtTime,
    TopicPartition,
    commit_offsets,
    committed_offsets,
    list_offsets,
)
from ..requests.transaction_requests import CommittedOffset, GroupMetadata, Offsets
from .fetched import ConsumerRecord
from .fetcher import Fetcher
from .group_membership import GroupMembership
from .options import ConsumerOptions, ConsumerSettings

__all__ = ["Consumer", "ConsumerRecord", "GroupMetadata", "RebalanceListener", "TopicPartition"]

log = logs.get(__name__)

Partitions = Collection[tuple[str, int]]


@dataclass(slots=True)
class RebalanceListener:
    """Called from within `poll`, `unsubscribe` and `close`.  `revoked`: before this member gives partitions
    up (commit here); `lost`: after it lost them; `assigned`: the added ones (with a cooperative assignor,
    kept partitions are in neither call)."""

    assigned: Callable[[Partitions], Awaitable[None]] | None = None
    revoked: Callable[[Partitions], Awaitable[None]] | None = None
    lost: Callable[[Partitions], Awaitable[None]] | None = None


class Consumer:
    """See the module's text.  Partitions are `(topic, number)`.  All methods belong to one task at a time.
    The settings are those of `ConsumerOptions`."""

    def __init__(
        self, bootstrap: str, *, clock: Clock | None = None, **settings: Unpack[ConsumerSettings]
    ) -> None:
        self._options = options = ConsumerOptions(**settings)
        self._clock: Clock = clock if clock is not None else SystemClock()
        self._cluster = Cluster(
            bootstrap,
            client_id=options.client_id,
            clock=self._clock,
            request_timeout_s=options.request_timeout_s,
            security=options.security,
        )
        self._auto_commit = options.auto_commit and options.group_id is not None
        self._fetcher = Fetcher(self._cluster, options.for_fetcher())
        self._membership: GroupMembership | None = None
        self._listener = RebalanceListener()
        self._next_auto_commit_s = 0.0
        self._committed: dict[tuple[str, int], int] = {}
        self._started = False
        self._closed = False

    # ---- life ----------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Connects.  Raises ConnectionFailed when no broker can be reached."""
        if not self._started:
            try:
                await self._cluster.start()
            except BaseException:
                await self._cluster.close()
                raise
            self._started = True

    async def close(self, *, commit: bool = True) -> None:
        """Commits automatically if that is on and tells the listener (if `commit`), leaves the group, closes
        the connections."""
        if self._closed:
            return
        self._closed = True
        try:
            if commit and self._started:
                if self._membership is not None:
                    await self._give_all_up(self._membership)
                else:
                    await self._commit_automatically(now=True)
        finally:
            if self._membership is not None:
                await self._membership.close()
            await self._fetcher.close()
            await self._cluster.close()

    async def __aenter__(self) -> Consumer:
        await self.start()
        return self

    async def __aexit__(self, kind: type[BaseException] | None, *_: object) -> None:
        # After a failure the application may not have processed the last delivered records: do not commit
        # them.
        await self.close(commit=kind is None)

    # ---- partitions to read --------------------------------------------------------------------------------

    def subscribe(self, topics: Sequence[str] | str, listener: RebalanceListener | None = None) -> None:
        """Shares these topics with the other members of the group; replaces a former subscription."""
        if self._options.group_id is None:
            raise RequestError(
                ErrorCode.INVALID_GROUP_ID, "subscribe needs a group_id; without one use assign()"
            )
        names = [topics] if isinstance(topics, str) else list(topics)
        if not names:
            raise RequestError(
                ErrorCode.INVALID_REQUEST,
                "subscribe needs at least one topic; unsubscribe() ends a subscription",
            )
        if self._membership is None:
            self._membership = GroupMembership(
                self._cluster, self._options.for_membership(), self._fetcher.news.set
            )
            self._fetcher.assign((), keep=False)
        self._listener = listener or RebalanceListener()
        self._membership.subscribe(names)

    async def unsubscribe(self) -> None:
        """Commits automatically if that is on, tells the listener, leaves the group and forgets all
        partitions."""
        membership = self._membership
        try:
            if membership is not None:
                await self._give_all_up(membership)
        finally:
            self._membership = None
            if membership is not None:
                await membership.close()
            self._fetcher.assign((), keep=False)

    def assign(self, partitions: Iterable[tuple[str, int]]) -> None:
        """Reads exactly these partitions, without a group; partitions that were assigned before keep their
        positions."""
        if self._membership is not None:
            raise RequestError(ErrorCode.INVALID_REQUEST, "this consumer is subscribed: unsubscribe() first")
        self._fetcher.assign(partitions, keep=True)

    def assignment(self) -> set[TopicPartition]:
        """The partitions that are read now."""
        return {TopicPartition(*key) for key in self._fetcher.assigned}

    async def partitions_for(self, topic: str) -> list[int]:
        """The partition numbers of a topic."""
        return list((await self._cluster.topic(topic, self._options.max_block_s)).partitions)

    # ---- reading -------------------------------------------------------------------------------------------

    async def poll(self, max_records: int | None = None, timeout_s: float = 1.0) -> list[ConsumerRecord]:
        """The fetched records, up to `max_records`; waits up to `timeout_s` for the first.  Joining a group
        may take longer."""
        self._require_started()
        count = max_records if max_records is not None else self._options.max_poll_records
        deadline_s = self._clock.monotonic() + timeout_s
        while True:
            await self._prepare()
            self._fetcher.news.clear()
            records = self._fetcher.take(count)
            if records:
                return records
            left_s = deadline_s - self._clock.monotonic()
            if left_s <= 0:
                return []
            timer = self._clock.call_later(left_s, self._fetcher.news.set)
            try:
                await self._fetcher.news.wait()
            finally:
                timer.cancel()

    def __aiter__(self) -> AsyncIterator[ConsumerRecord]:
        return self._iterate()

    async def _iterate(self) -> AsyncIterator[ConsumerRecord]:
        """Yields one record at a time, so that a commit covers exactly the yielded records."""
        while not self._closed:
            if self._nothing_due() and self._fetcher.has_records():
                records = self._fetcher.take(1)
            else:
                records = await self.poll(1, timeout_s=60.0)
            for record in records:
                yield record

    def _nothing_due(self) -> bool:
        membership = self._membership
        if membership is not None:
            membership.polled()
            if membership.rejoin_needed:
                return False
        return not (self._auto_commit and self._clock.monotonic() >= self._next_auto_commit_s)

    async def _prepare(self) -> None:
        """The work before records may be delivered: group, positions, automatic commit."""
        if self._cluster.metadata_is_old:
            await self._cluster.refresh(self._cluster.view.topics)
        if self._membership is not None:
            self._membership.polled()
            while self._membership.rejoin_needed:
                await self._rebalance(self._membership)
        await self._commit_automatically(now=False)
        if self._fetcher.without_position():
            await self._find_positions()

    async def _rebalance(self, membership: GroupMembership) -> None:
        """Eager: the member gives all partitions up before it joins the group again.  Cooperative: after the
        join it revokes the partitions that are not in its new assignment, and joins once more, so that
        another member gets them (KIP-429)."""
        if membership.lost:
            await self._give_up(self.assignment(), lost=True)
        else:
            await self._commit_automatically(now=True)
            if not membership.is_cooperative:
                await self._give_up(self.assignment())
        owned = self.assignment()
        shares, kept = await membership.rejoin(by_topic(owned))
        try:
            if not kept:
                await self._give_up(owned, lost=True)
            membership.settle()
            share = {TopicPartition(topic, number) for topic, numbers in shares.items() for number in numbers}
            added = share - self.assignment()
            if revoked := self.assignment() - share:
                membership.rejoin_needed = True
                await self._give_up(revoked)
            await self._know_topics({topic for topic, _ in added})
        # the partitions are this member's, but it does not read them: the next poll joins again
        except BaseException:
            membership.rejoin_needed, membership.lost = True, membership.lost or not kept
            raise
        self._fetcher.assign(share, keep=True)
        self._next_auto_commit_s = self._clock.monotonic() + self._options.auto_commit_interval_ms / 1000
        if self._listener.assigned is not None:
            await self._listener.assigned(added)

    async def _give_all_up(self, membership: GroupMembership) -> None:
        """Gives all partitions up before this member leaves its group, while it may still commit."""
        lost = membership.lost or membership.failure is not None
        if not lost:
            await self._commit_automatically(now=True)
        await self._give_up(self.assignment(), lost=lost)

    async def _give_up(self, partitions: set[TopicPartition], *, lost: bool = False) -> None:
        """Calls the listener, while the positions are still known, and drops them."""
        tell = self._listener.lost if lost else self._listener.revoked
        if partitions and tell is not None:
            await tell(partitions)
        self._fetcher.assign(self.assignment() - partitions, keep=True)
        for key in partitions:
            self._committed.pop(key, None)

    async def _know_topics(self, topics: set[str]) -> None:
        if any(topic not in self._cluster.view.topics for topic in topics):
            await self._cluster.refresh(topics)

    async def _find_positions(self) -> None:
        """Sets missing positions: from committed offsets, else by the reset policy."""
        missing = self._fetcher.without_position()
        await self._know_topics({topic for topic, _ in missing})
        fresh = [key for key, lost in missing.items() if not lost]
        stored: dict[tuple[str, int], CommittedOffset] = {}
        if self._options.group_id is not None and fresh:
            stored = await committed_offsets(
                self._cluster,
                self._options.group_id,
                fresh,
                require_stable=self._options.read_committed,
                timeout_s=self._options.max_block_s,
            )
        for key, entry in stored.items():
            self._seek_if_missing(key, entry.offset)
        without = {key for key in missing if key not in stored}
        if not without:
            return
        if self._options.reset is None:
            names = ", ".join(f"{topic}-{number}" for topic, number in sorted(without))
            raise NoOffset(
                ErrorCode.OFFSET_OUT_OF_RANGE,
                f"no position for {names} and auto_offset_reset is 'none': seek() to an offset",
            )
        for key, found in (await self._list(dict.fromkeys(without, self._options.reset))).items():
            self._seek_if_missing(key, found.offset)

    def _seek_if_missing(self, key: tuple[str, int], offset: int) -> None:
        if key in self._fetcher.without_position():  # revoked, or moved by `seek`, during the request
            self._fetcher.seek(key, offset)

    # ---- positions -----------------------------------------------------------------------------------------

    def seek(self, partition: tuple[str, int], offset: int) -> None:
        """The next record of this partition is the first at or after `offset`."""
        if offset < 0:
            raise RequestError(ErrorCode.OFFSET_OUT_OF_RANGE, f"seek to {offset}: offsets begin at 0")
        self._fetcher.seek(partition, offset)

    async def seek_to_beginning(self, *partitions: tuple[str, int]) -> None:
        """To the log start; all assigned partitions when none is named."""
        for key, offset in (await self.beginning_offsets(partitions or self._fetcher.assigned)).items():
            self._fetcher.seek(key, offset)

    async def seek_to_end(self, *partitions: tuple[str, int]) -> None:
        """To the log's visible end (at read_committed: the last stable offset)."""
        for key, offset in (await self.end_offsets(partitions or self._fetcher.assigned)).items():
            self._fetcher.seek(key, offset)

    async def position(self, partition: tuple[str, int]) -> int:
        """The offset of the next record to be delivered."""
        self._require_started()
        if self._fetcher.position(partition) is None:
            await self._find_positions()
        found = self._fetcher.position(partition)
        assert found is not None
        return found

    def positions(self) -> dict[tuple[str, int], int]:
        """The positions of the assigned partitions: the offsets to commit when all delivered records are
        processed."""
        return self._fetcher.positions()

    def lag(self, partition: tuple[str, int]) -> int | None:
        """The offsets between this partition's position and the visible end of the log; None before the first
        answer."""
        return self._fetcher.lag(partition)

    def pause(self, *partitions: tuple[str, int]) -> None:
        """Delivers nothing from these partitions until `resume`; they stay assigned."""
        self._fetcher.pause(partitions, True)

    def resume(self, *partitions: tuple[str, int]) -> None:
        """Delivers records of these partitions again, from the position where `pause` met them."""
        self._fetcher.pause(partitions, False)

    def paused(self) -> set[tuple[str, int]]:
        """The assigned partitions that `pause` stopped."""
        return self._fetcher.paused()

    async def beginning_offsets(self, partitions: Iterable[tuple[str, int]]) -> dict[tuple[str, int], int]:
        """The first offset of each partition."""
        return {
            key: found.offset
            for key, found in (await self._list(dict.fromkeys(partitions, EARLIEST))).items()
        }

    async def end_offsets(self, partitions: Iterable[tuple[str, int]]) -> dict[tuple[str, int], int]:
        """The offset after the last readable record of each partition."""
        return {
            key: found.offset for key, found in (await self._list(dict.fromkeys(partitions, LATEST))).items()
        }

    async def offsets_for_times(
        self, times: Mapping[tuple[str, int], int]
    ) -> dict[tuple[str, int], OffsetAtTime | None]:
        """The first record at or after each time (milliseconds); None where there is none."""
        found = await self._list(dict(times))
        return {key: entry if entry.offset >= 0 else None for key, entry in found.items()}

    async def _list(self, times: dict[tuple[str, int], int]) -> dict[tuple[str, int], OffsetAtTime]:
        self._require_started()
        return await list_offsets(
            self._cluster,
            times,
            read_committed=self._options.read_committed,
            timeout_s=self._options.max_block_s,
        )

    # ---- commits -------------------------------------------------------------------------------------------

    def group_metadata(self) -> GroupMetadata:
        """For `Producer.send_offsets_to_transaction`: the fence against a consumer that lost its
        partitions."""
        if self._membership is not None:
            return self._membership.metadata()
        return GroupMetadata(self._require_group())

    async def commit(self, offsets: Offsets | None = None) -> None:
        """Stores offsets (default: the positions of everything delivered).  Raises GroupChanged after a
        rebalance."""
        self._require_started()
        group_id = self._require_group()
        stored = dict(offsets) if offsets is not None else dict(self._fetcher.positions())
        group = self._membership.metadata() if self._membership is not None else GroupMetadata(group_id)
        try:
            await commit_offsets(self._cluster, group, stored, timeout_s=self._options.max_block_s)
        except GroupChanged:
            if self._membership is not None:
                self._membership.rejoin_needed = True
            raise
        for key, entry in stored.items():
            self._committed[key] = entry.offset if isinstance(entry, CommittedOffset) else entry

    async def committed(
        self, partitions: Iterable[tuple[str, int]] | None = None
    ) -> dict[tuple[str, int], CommittedOffset]:
        """The group's committed offsets (default: of the assigned partitions); partitions without one are
        left out."""
        self._require_started()
        wanted = self._fetcher.assigned if partitions is None else partitions
        return await committed_offsets(
            self._cluster,
            self._require_group(),
            wanted,
            require_stable=self._options.read_committed,
            timeout_s=self._options.max_block_s,
        )

    async def _commit_automatically(self, *, now: bool) -> None:
        if not self._auto_commit or (not now and self._clock.monotonic() < self._next_auto_commit_s):
            return
        self._next_auto_commit_s = self._clock.monotonic() + self._options.auto_commit_interval_ms / 1000
        changed = {
            key: offset
            for key, offset in self._fetcher.positions().items()
            if self._committed.get(key) != offset
        }
        if not changed:
            return
        try:
            await self.commit(changed)
        except (GroupChanged, RetriableError, FatalError) as error:
            # No record is lost: the consumer reads them again.  The membership raises fatal errors at the
            # next poll.
            log.warning("auto_commit_failed", group=self._options.group_id, reason=str(error))

    def _require_group(self) -> str:
        if self._options.group_id is None:
            raise RequestError(
                ErrorCode.INVALID_GROUP_ID, "this consumer has no group_id: give it one to store offsets"
            )
        return self._options.group_id

    def _require_started(self) -> None:
        if not self._started:
            raise RequestError(
                ErrorCode.INVALID_REQUEST, "the consumer is not started: use `async with Consumer(...)`"
            )
