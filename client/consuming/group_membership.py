"""A consumer's place in its group: join, sync, heartbeat, leave (the classic protocol).

The two parts:

* Heartbeats run in a task of their own.  This task only *detects*: that the group rebalances, that the
  coordinator removed this member, that the application has not polled for too long (then the member leaves,
  so that others get its partitions).
* Only the consumer's `poll` calls `rejoin`, which joins; the new generation counts from `settle` on.  So
  `metadata()` returns the member and generation under which the application got its records, also when a
  heartbeat has detected a rebalance since, and the coordinator rejects offsets sent with them after a
  rebalance (KIP-447).

A member keeps its id over rebalances, until the coordinator does not know it any more.

With only the cooperative assignor (KIP-429), a member joins with its owned partitions and keeps them until
its new assignment leaves them out; with any other assignor, it gives all partitions up before it joins.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from ...runtime import logs
from ...wire.api import ApiKey
from ...wire.errors import ErrorCode, KafkaError
from ..connecting.cluster import Backoff, Cluster, CoordinatorKind, top_level_code
from ..connecting.errors import FatalError, RetriableError, error_for, sentence
from ..requests.assignors import (
    ASSIGNORS,
    COOPERATIVE,
    ClassicAssignor,
    Subscription,
    TopicPartitions,
    decode_assignment,
    decode_subscription,
    encode_assignment,
    encode_subscription,
)
from ..requests.transaction_requests import GroupMetadata

log = logs.get(__name__)

PROTOCOL_TYPE: Final = "consumer"
NO_GENERATION: Final = -1
_LOST: Final = frozenset({ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.ILLEGAL_GENERATION})
_FATAL: Final = frozenset({ErrorCode.FENCED_INSTANCE_ID, ErrorCode.UNRELEASED_INSTANCE_ID})


@dataclass(frozen=True, slots=True)
class MembershipSettings:
    """The timeouts of a member; see Consumer."""

    group_id: str
    group_instance_id: str | None
    assignors: tuple[str, ...]
    session_timeout_ms: int
    heartbeat_interval_ms: int
    max_poll_interval_ms: int
    request_timeout_s: float


class GroupMembership:
    """See the module's text.  `on_news()` is called when `rejoin_needed` becomes true."""

    def __init__(self, cluster: Cluster, settings: MembershipSettings, on_news: Callable[[], None]) -> None:
        unknown = [name for name in settings.assignors if name not in ASSIGNORS]
        if unknown or not settings.assignors:
            raise ValueError(f"assignors={settings.assignors!r}: choose from {', '.join(ASSIGNORS)}")
        self._cluster = cluster
        self._settings = settings
        self._on_news = on_news
        self._topics: tuple[str, ...] = ()
        self._heartbeats: asyncio.Task[None] | None = None
        self._polled_at_s = cluster.clock.monotonic()
        # partition counts at the leader's last assignment; empty for other members
        self._partition_counts: dict[str, int] = {}
        self.member_id = ""
        self.generation = NO_GENERATION
        self._settled = GroupMetadata(settings.group_id, group_instance_id=settings.group_instance_id)
        self.rejoin_needed = True
        self.lost = False  # the coordinator removed this member: other members may already own its partitions
        self.failure: KafkaError | None = None
        self.is_cooperative = set(settings.assignors) == {COOPERATIVE}
        cluster.on_metadata(self._metadata_changed)

    # ---- for the consumer ----------------------------------------------------------------------------------

    def metadata(self) -> GroupMetadata:
        """The fence for offsets: the member id and generation, or the last ones after a removal."""
        return self._settled

    def settle(self) -> None:
        """The application has released the partitions that it lost: the new generation counts from now on."""
        settings = self._settings
        self._settled = GroupMetadata(
            settings.group_id, self.generation, self.member_id, settings.group_instance_id
        )

    def subscribe(self, topics: Sequence[str]) -> None:
        """Sets the subscribed topics; takes effect at the next `rejoin`."""
        self._topics = tuple(sorted(set(topics)))
        self._need_rejoin()

    def polled(self) -> None:
        """The application has polled.  Raises the fatal error of the membership, if any."""
        self._polled_at_s = self._cluster.clock.monotonic()
        if self.failure is not None:
            raise self.failure

    async def rejoin(self, owned: TopicPartitions) -> tuple[TopicPartitions, bool]:
        """Joins the group and returns this member's partitions, and whether it still had its `owned` ones
        until then.  Retries until the join succeeds; raises FatalError when it cannot."""
        backoff = Backoff(self._cluster.clock)
        self._stop_heartbeats()
        kept = not self.lost
        while True:
            self.rejoin_needed = False
            try:
                joined = await self._join(owned if kept else {})
                if joined is not None:
                    assignment = await self._sync(joined)
                    if assignment is not None:
                        self.lost = False
                        self._polled_at_s = self._cluster.clock.monotonic()
                        self._heartbeats = asyncio.create_task(
                            self._heartbeat_loop(), name="consumer-heartbeat"
                        )
                        return assignment, kept
                kept = kept and not self.lost
            except BaseException:
                self.rejoin_needed = True
                raise
            await self._cluster.clock.sleep(backoff.next_s())

    async def leave(self) -> None:
        """Leaves the group, so that other members need not wait for the session timeout.  A static member
        stays (KIP-345)."""
        self._stop_heartbeats()
        if (
            self.generation == NO_GENERATION
            or not self.member_id
            or self._settings.group_instance_id is not None
        ):
            return
        member = {"member_id": self.member_id, "group_instance_id": None}
        fields = {"group_id": self._settings.group_id, "member_id": self.member_id, "members": [member]}
        self.generation = NO_GENERATION
        self.rejoin_needed = True
        try:
            await self._ask(ApiKey.LEAVE_GROUP, fields, timeout_s=5.0, highest=4)
        except KafkaError as error:
            # the session times out
            log.info("leave_unconfirmed", group=self._settings.group_id, reason=str(error))

    async def close(self) -> None:
        await self.leave()

    # ---- joining -------------------------------------------------------------------------------------------

    async def _join(self, owned: TopicPartitions) -> Any | None:
        """Sends one JoinGroup; None: try again."""
        settings = self._settings
        subscription = encode_subscription(
            Subscription(self._topics, owned=owned, generation=self.generation)
        )
        fields = {
            "group_id": settings.group_id,
            "session_timeout": settings.session_timeout_ms,
            "rebalance_timeout": settings.max_poll_interval_ms,
            "member_id": self.member_id,
            "group_instance_id": settings.group_instance_id,
            "protocol_type": PROTOCOL_TYPE,
            "protocols": [{"name": name, "metadata": subscription} for name in settings.assignors],
        }
        patience_s = settings.max_poll_interval_ms / 1000 + settings.request_timeout_s
        answer = await self._ask(
            ApiKey.JOIN_GROUP, fields, timeout_s=patience_s, answer_timeout_s=patience_s, highest=7
        )
        code = top_level_code(answer)
        if code is ErrorCode.NONE:
            self.member_id, self.generation = answer.member_id, int(answer.generation_id)
            return answer
        if code is ErrorCode.MEMBER_ID_REQUIRED:
            self.member_id = answer.member_id  # KIP-394: join again with this id
            return await self._join(owned)
        self._refused(code, "joining")
        return None

    async def _sync(self, joined: Any) -> TopicPartitions | None:
        """Sends SyncGroup, as leader with the assignment; None: join again."""
        settings = self._settings
        assignments: list[dict[str, Any]] = []
        if joined.leader == self.member_id:
            shares = await self._share_out(joined)
            assignments = [
                {"member_id": member, "assignment": encode_assignment(share)}
                for member, share in shares.items()
            ]
        else:
            self._partition_counts = {}
        fields = {
            "group_id": settings.group_id,
            "generation_id": self.generation,
            "member_id": self.member_id,
            "group_instance_id": settings.group_instance_id,
            "protocol_type": PROTOCOL_TYPE,
            "protocol_name": joined.protocol_name,
            "assignments": assignments,
        }
        patience_s = settings.max_poll_interval_ms / 1000 + settings.request_timeout_s
        answer = await self._ask(
            ApiKey.SYNC_GROUP, fields, timeout_s=patience_s, answer_timeout_s=patience_s, highest=5
        )
        code = top_level_code(answer)
        if code is ErrorCode.NONE:
            assignment = decode_assignment(bytes(answer.assignment))
            count = sum(len(numbers) for numbers in assignment.values())
            log.info("group_joined", group=settings.group_id, generation=self.generation, partitions=count)
            return assignment
        self._refused(code, "syncing with")
        return None

    async def _share_out(self, joined: Any) -> dict[str, TopicPartitions]:
        """As group leader: runs the assignor that the coordinator chose."""
        assignor: ClassicAssignor | None = ASSIGNORS.get(joined.protocol_name)
        if assignor is None:
            raise FatalError(
                ErrorCode.INCONSISTENT_GROUP_PROTOCOL,
                f"group {self._settings.group_id!r} chose the assignor {joined.protocol_name!r}, "
                "which this client does not have",
            )
        subscriptions = {
            member.member_id: replace(
                decode_subscription(bytes(member.metadata)),
                group_instance_id=getattr(member, "group_instance_id", None),
            )
            for member in joined.members
        }
        topics = {topic for subscription in subscriptions.values() for topic in subscription.topics}
        await self._cluster.refresh(topics)
        self._partition_counts = self._counts(topics)
        return assignor.assign(self._partition_counts, subscriptions)

    def _counts(self, topics: set[str] | Mapping[str, int]) -> dict[str, int]:
        views = self._cluster.view.topics
        return {topic: len(views[topic].partitions) if topic in views else 0 for topic in topics}

    def _metadata_changed(self) -> None:
        """The group leader requests a rebalance when a topic got partitions."""
        counts = self._partition_counts
        if counts and self.generation != NO_GENERATION and self._counts(counts) != counts:
            self._need_rejoin()

    def _refused(self, code: ErrorCode, doing: str) -> None:
        """Handles an error of the coordinator; returns when the member may join again, else raises."""
        what = f"{doing} group {self._settings.group_id!r}"
        if code in _FATAL:
            raise FatalError(code, sentence(code, what))
        if code in _LOST:
            self._forget(code)
        elif code is not ErrorCode.REBALANCE_IN_PROGRESS and not code.retriable:
            error = error_for(code, what)
            raise error if isinstance(error, FatalError) else FatalError(code, error.message)

    def _forget(self, code: ErrorCode) -> None:
        """The coordinator has no such member: drops the member id."""
        self.generation = NO_GENERATION
        if code is ErrorCode.UNKNOWN_MEMBER_ID:
            self.member_id = ""
        self.lost = True

    # ---- heartbeats ----------------------------------------------------------------------------------------

    async def _heartbeat_loop(self) -> None:
        settings = self._settings
        while True:
            await self._cluster.clock.sleep(settings.heartbeat_interval_ms / 1000)
            if self._cluster.clock.monotonic() - self._polled_at_s > settings.max_poll_interval_ms / 1000:
                log.warning(
                    "poll_too_late", group=settings.group_id,
                    max_poll_interval_ms=settings.max_poll_interval_ms,
                    advice="the partitions go to other members: poll more often, or "
                    "raise max_poll_interval_ms",
                )  # fmt: skip
                self._heartbeats = None  # this task: `leave` must not cancel it
                await self.leave()
                self.lost = True
                self._need_rejoin()
                return
            try:
                code = await self._heartbeat()
            except RetriableError as error:
                log.debug("heartbeat_failed", group=settings.group_id, reason=str(error))
                continue
            except KafkaError as error:
                self.failure = error
                self._on_news()
                return
            if code in _FATAL:
                self.failure = FatalError(code, sentence(code, f"member of group {settings.group_id!r}"))
                self._on_news()
                return
            if code in _LOST:
                log.warning("removed_from_group", group=settings.group_id, error=code.name)
                self._forget(code)
                self._need_rejoin()
                return
            if code is ErrorCode.REBALANCE_IN_PROGRESS:
                self._need_rejoin()

    async def _heartbeat(self) -> ErrorCode:
        settings = self._settings
        fields = {
            "group_id": settings.group_id,
            "generation_id": self.generation,
            "member_id": self.member_id,
            "group_instance_id": settings.group_instance_id,
        }
        # Shorter than for other requests: while a coordinator does not answer, its successor already counts
        # the session.
        session_s = settings.session_timeout_ms / 1000
        answer_s = min(settings.request_timeout_s, session_s / 2)
        answer = await self._ask(
            ApiKey.HEARTBEAT, fields, timeout_s=session_s, answer_timeout_s=answer_s, highest=4
        )
        return top_level_code(answer)

    def _need_rejoin(self) -> None:
        if not self.rejoin_needed:
            self.rejoin_needed = True
        self._on_news()

    def _stop_heartbeats(self) -> None:
        if self._heartbeats is not None:
            self._heartbeats.cancel()
            self._heartbeats = None

    async def _ask(
        self,
        api_key: ApiKey,
        fields: dict[str, Any],
        *,
        timeout_s: float,
        answer_timeout_s: float | None = None,
        highest: int,
    ) -> Any:
        return await self._cluster.ask_coordinator(
            CoordinatorKind.GROUP,
            self._settings.group_id,
            api_key,
            fields,
            deadline_s=self._cluster.clock.monotonic() + timeout_s,
            code_of=top_level_code,
            highest=highest,
            timeout_s=answer_timeout_s,
        )
