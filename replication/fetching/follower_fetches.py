"""The leader's side of replication: answering the fetches of followers.

Order, for every partition listed in a fetch: compare topic ids (a topic that is deleted and created again
begins at epoch 0, so leader epochs do not distinguish the two), fence by leader epoch, compare epoch
histories, and only then record the fetch offset (`Replica.receive_fetch`), move the high watermark, propose
the follower for the ISR.  Reading comes last, for the listed partitions and for those of the session that
changed.

A fetch waits until a partition has records, an error or a divergence.  When only a high watermark has moved
it waits for `WATERMARK_NEWS_S` more, because the next records carry the high watermark too.  A newer fetch of
the same follower ends the wait of the older one.  Each answer spends its byte budget from another partition
on, and the first partition that has records always gets one whole batch, however large (docs/semantics.md
R15).  A replica that catches up may get fewer bytes (`catch_up_throttle.py`): the rest comes with later
fetches.

Within a session the requests are numbered, so the leader sees them in order, and a position holds until the
follower lists another one.  A fetch outside the session may arrive after newer ones: the leader answers it,
but does not record its offset for a partition that the session has listed, because no later fetch would
correct it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable

from ...runtime.clock import Clock, until_next
from ...wire.errors import ErrorCode, KafkaError
from ...wire.fetch import FetchPartition, FetchRequest, FetchResponse, FetchResponsePartition
from ..partition.follower import FetchPosition
from ..replica.catch_up_throttle import CatchUpThrottle
from ..replica.reading import failed_answer, read_batches
from ..replica.replica import Replica, TakeOffline
from ..replica.waiters import WATERMARK_NEWS_S, FetchWaiter
from .configuration import ReplicationLimits
from .fetch_session import NO_SESSION_EPOCH, SESSIONS_MAX, Facts, FollowerSession, News, SessionTable

SHARED_WAIT_S_MAX = 2.0
"""A fetch that may wait for longer waits for as long as it may."""

Key = tuple[str, int]


class FollowerFetches:
    """Serves fetches whose `replica_id` names a broker."""

    def __init__(
        self,
        clock: Clock,
        lookup: Callable[[str, int], Replica],
        limits: ReplicationLimits,
        on_progress: Callable[[Replica, int], None],
        take_offline: TakeOffline,
    ) -> None:
        """`on_progress(replica, node)` runs right after a fetch offset was recorded."""
        self._clock = clock
        self._lookup = lookup
        self.catch_up = CatchUpThrottle(lambda: limits.catch_up_bytes_per_s)
        self.throttle = CatchUpThrottle(lambda: limits.leader_throttled_bytes_per_s)
        self._on_progress = on_progress
        self._take_offline = take_offline
        self._sessions = SessionTable(1 + int(clock.random() * 1_000_000_000))
        self._waiting: dict[int, FetchWaiter] = {}
        self._last_fetch_s: dict[int, float] = {}
        self._rotation = 0

    @property
    def waiting(self) -> int:
        return len(self._waiting)

    @property
    def sessions(self) -> int:
        return len(self._sessions)

    def recent_fetchers(self, within_s: float) -> frozenset[int]:
        """The followers that fetched any partition in the last `within_s` seconds."""
        since_s = self._clock.monotonic() - within_s
        return frozenset(node_id for node_id, fetched_s in self._last_fetch_s.items() if fetched_s >= since_s)

    async def fetch(self, request: FetchRequest) -> FetchResponse:
        """Answers `request`, waiting up to its `max_wait_ms`; errors are values of the partitions."""
        node_id = request.replica_id
        if node_id in self._last_fetch_s or len(self._last_fetch_s) < SESSIONS_MAX:
            self._last_fetch_s[node_id] = self._clock.monotonic()
        previous = self._waiting.get(node_id)
        if previous is not None:
            previous.wake()
        session = self._sessions.open(request)
        if isinstance(session, ErrorCode):
            return FetchResponse(session)
        try:
            return await self._serve(request, session)
        finally:
            if session.session_id == 0:
                session.close()

    async def _serve(self, request: FetchRequest, session: FollowerSession) -> FetchResponse:
        listed = [(topic, spec.partition) for topic, specs in request.topics for spec in specs]
        everything = request.session_epoch <= 0
        answers, news = self._evaluate(request, session, listed, everything=everything, arrival=True)
        if news is not News.NOW and request.max_wait_ms > 0:
            wait_s = request.max_wait_ms / 1000
            # the fetches of all followers end together, and so those that follow arrive together
            idle_s = until_next(self._clock.monotonic(), wait_s) if wait_s <= SHARED_WAIT_S_MAX else wait_s
            await self._wait(session, idle_s if news is News.NONE else min(wait_s, WATERMARK_NEWS_S))
            if session.closed:
                return FetchResponse(ErrorCode.FETCH_SESSION_ID_NOT_FOUND)
            # A change, the follower's newer fetch or the timer ended the wait: the leader answers in any
            # case.
            answers, _ = self._evaluate(
                request, session, listed if everything else (), everything=everything, arrival=False
            )
        return FetchResponse(ErrorCode.NONE, session.session_id, answers)

    def end(self, replica: Replica, code: ErrorCode) -> None:
        """Answers all fetches that wait for this replica, with what each of them finds now."""
        replica.watchers.records_appended()

    async def _wait(self, session: FollowerSession, delay_s: float) -> None:
        woken: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        waiter = FetchWaiter(lambda: None if woken.done() else woken.set_result(None))
        waiter.start_timer(self._clock, delay_s)
        self._waiting[session.node_id] = session.waiter = waiter
        try:
            await woken
        finally:
            waiter.close()
            if session.waiter is waiter:
                session.waiter = None
            if self._waiting.get(session.node_id) is waiter:
                del self._waiting[session.node_id]

    def _evaluate(
        self,
        request: FetchRequest,
        session: FollowerSession,
        listed: Iterable[Key],
        *,
        everything: bool,
        arrival: bool,
    ) -> tuple[list[tuple[str, list[FetchResponsePartition]]], News]:
        """The answer with the present state, and what news it has: on arrival the leader sends it at once
        when that is `NOW`.

        It has the listed partitions and those that changed; with `everything` also those without news.
        """
        fresh = frozenset(listed) if arrival else frozenset()
        keys = list(dict.fromkeys((*listed, *session.dirty)))
        by_topic: dict[str, list[FetchResponsePartition]] = {}
        total, most = 0, News.NONE if arrival and request.max_wait_ms > 0 else News.NOW
        facts: dict[Key, Facts] = {}
        self._rotation += 1
        first = self._rotation % len(keys) if keys else 0
        for key in (*keys[first:], *keys[:first]):
            spec = session.parts.get(key)
            if spec is None:
                session.drop(key)
                continue
            budget = min(spec.max_bytes, request.max_bytes - total)
            try:
                answer, news = self._answer(
                    request, session, key, spec, budget, total == 0, key in fresh, facts
                )
            except KafkaError as error:
                session.drop(key)
                answer, news = failed_answer(self._lookup, key, error), News.NOW
            total += len(answer.records)
            if news is not News.NONE:
                most = news if most is not News.NOW else most
            if news is not News.NONE or everything:
                by_topic.setdefault(key[0], []).append(answer)
        if most is News.NOW:
            for key, sent_facts in facts.items():
                session.record_sent(key, sent_facts)
        else:
            session.dirty.update(dict.fromkeys(facts))  # not sent now: the next answer has it
        return list(by_topic.items()), most

    def _throttles_of(self, replica: Replica) -> list[CatchUpThrottle]:
        """The throttles for followers of this replica that catch up."""
        found = [self.catch_up] if self.catch_up.limits else []
        return [*found, self.throttle] if self.throttle.limits and replica.is_leader_throttled else found

    def _answer(
        self,
        request: FetchRequest,
        session: FollowerSession,
        key: Key,
        spec: FetchPartition,
        budget: int,
        at_least_one: bool,
        arrival: bool,
        facts: dict[Key, Facts],
    ) -> tuple[FetchResponsePartition, News]:
        """The answer for one partition, and what news it has for the follower; its state goes into
        `facts`."""
        replica = self._lookup(*key)
        if spec.topic_id != replica.topic_id:
            # Deleted and created again, and one node has older metadata: epochs of two topics cannot be
            # compared.
            raise KafkaError(
                ErrorCode.INCONSISTENT_TOPIC_ID,
                f"{key[0]} is topic {replica.topic_id} here, not {spec.topic_id}",
            )
        sent = FetchPosition(
            spec.current_leader_epoch, spec.fetch_offset, spec.last_fetched_epoch, spec.log_start_offset
        )
        now_s = self._clock.monotonic()
        beside = request.session_epoch == NO_SESSION_EPOCH and self._sessions.lists(
            request.replica_id, key, spec
        )
        diverging = replica.receive_fetch(
            request.replica_id, request.replica_epoch, sent, now_s=now_s, arrival=arrival and not beside
        )
        session.watch(key, replica.watchers)
        log = replica.log
        if diverging is None and arrival:
            self._on_progress(replica, request.replica_id)
        session.dirty.pop(key, None)  # nothing else runs until the answer is complete, so it has every change
        leader = replica.require_leader()
        answer = FetchResponsePartition(
            key[1],
            high_watermark=leader.high_watermark,
            log_start_offset=log.log_start_offset,
            diverging_epoch=diverging,
        )
        if diverging is not None:
            return answer, News.NOW
        if spec.fetch_offset < log.log_end_offset:
            end = log.log_end_offset
            throttles = self._throttles_of(replica)
            held_back = (
                throttles if throttles and leader.is_catching_up(request.replica_id, end, now_s) else []
            )
            for throttle in held_back:
                allowance = throttle.allowance(now_s)
                budget, at_least_one = min(budget, allowance), at_least_one and allowance > 0
            if budget > 0 or at_least_one:
                answer.records, _ = read_batches(
                    replica, spec.fetch_offset, budget, end, at_least_one, self._take_offline
                )
                answer.may_have_offset_gaps = log.config.may_have_offset_gaps
                if answer.may_have_offset_gaps:
                    answer.cleaned_at_most = replica.cleaned_at_most_for(spec.fetch_offset)
            for throttle in held_back:
                throttle.sent(len(answer.records))
            if not answer.records:
                session.dirty[key] = None  # the budget is used up: the next fetch reads it
        news_facts = Facts(leader, leader.high_watermark, log.log_start_offset)
        news = session.news(key, news_facts)
        if news is not News.NONE:
            facts[key] = news_facts
        return answer, News.NOW if answer.records else news
