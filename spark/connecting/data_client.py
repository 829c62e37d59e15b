"""The blocking gRPC client of the data service: finds leaders, sends them requests, and retries within
bounds.

One instance serves one driver call or one task, in one thread.  A call either returns the answer of the
partition's leader or raises `ReadError`.  In between it follows leader hints, asks the other nodes when it
knows no leader, and waits longer and longer between attempts, until `retry_timeout_ms` have passed without
progress.  For a topic that is not in the cluster's metadata it retries for some seconds only: the topic may
have been created a moment ago; otherwise it was deleted.

The records of a range come over a range connection where the leader has one, everything else over gRPC.  A
stream has no deadline as a whole.  The client cancels it when it waits for the next chunk and the node is
silent for STALL_TIMEOUT_S; the time in which the consumer processes a chunk does not count.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from contextlib import closing

import grpc

from ...client.consuming.visibility import AtCut
from ...proto import data_pb2, data_pb2_grpc
from ...proto.range_chunks import READ_RANGE, RecordsChunk, parse
from ...runtime.clock import Clock, SystemClock
from ...security.client_security import ClientSecurity
from ...security.grpc_session import Metadata
from ...wire.errors import ErrorCode
from .answers import LeaderView, OffsetAnswer, SplitRange, TopicView, leader_view
from .at_once import ask_at_once
from .channels import Channels
from .errors import CURABLE, TOPIC_UNKNOWN, Problem, ReadError, problem_of_detail, problem_of_partition
from .leaders import Leaders
from .nodes import Nodes, Reply
from .range_connections import RangeConnection, RangeConnectionLost, RangeRefused
from .retry import UNKNOWN_TOPIC_TIMEOUT_S, RetryBudget, StallWatchdog

Key = tuple[str, int]  # topic, partition

CALL_TIMEOUT_S = 30.0
DESCRIBE_TIMEOUT_S = 5.0  # any node can answer, so the client soon tries another one
# the first count of a log from an older version takes long, and continues with the next request
COUNT_TIMEOUT_S = 60.0
STALL_TIMEOUT_MIN_S = 5.0
STALL_TIMEOUT_S = 60.0  # how long to wait for a silent leader; then the client cancels the stream and resumes
ID_UNKNOWN = b""  # stands for whichever topic has the name
NAMED_AT_ONCE = 1_000  # topics of one DescribeTopics that looks for missing ones
PLANNED_AT_ONCE = 1_000  # partitions of one PlanManyRanges


class DataClient:
    """A connection to the cluster's data services; use from one thread, and close it."""

    def __init__(
        self,
        bootstrap: Sequence[str],
        *,
        retry_timeout_ms: int,
        clock: Clock | None = None,
        channels: Channels | None = None,
        security: ClientSecurity | None = None,
        reads_local_files: bool = True,
    ) -> None:
        """`bootstrap`: gRPC or Kafka listeners of some nodes, each as host:port; with `security` gRPC
        listeners.  `close` does not close passed `channels`, which were made with the same `security`.
        `reads_local_files`: records of a node on this machine, where this process may."""
        self._reads_local_files = reads_local_files
        self._clock = clock or SystemClock()
        self._retry_timeout_s = retry_timeout_ms / 1000
        # Half of the retry timeout, so that some is left for another leader.
        self._stall_timeout_s = min(STALL_TIMEOUT_S, max(STALL_TIMEOUT_MIN_S, self._retry_timeout_s / 2))
        self._own_channels = None if channels is not None else Channels(security=security)
        self._channels = channels or self._own_channels or Channels()
        is_secured = security is not None and security.protocol != "PLAINTEXT"
        self._nodes = Nodes(bootstrap, self._channels, is_secured=is_secured)
        self.leaders = Leaders()

    def close(self) -> None:
        """Closes its own channels; running calls on them end."""
        if self._own_channels is not None:
            self._own_channels.close()
        self._nodes.close()

    def retry_budget(self) -> RetryBudget:
        return RetryBudget(self._clock, self._retry_timeout_s, UNKNOWN_TOPIC_TIMEOUT_S)

    # Topics

    def describe(self, names: Sequence[str] = ()) -> dict[str, TopicView]:
        """The named topics, or all; raises ReadError when one does not exist."""
        budget = self.retry_budget()
        while True:
            found, problem = self._describe_once(names)
            if problem is None:
                return found
            self._nodes.begin_with_next()
            _wait_or_raise(budget, problem)

    def describe_existing(
        self, names: Sequence[str], expected: Mapping[str, bytes], partitions: Iterable[Key] = ()
    ) -> dict[str, TopicView]:
        """The named topics that exist, or all.  One node may lag behind a change: while a topic of `expected`
        is missing, or has another id there, or lacks one of `partitions`, the client asks others for some
        seconds.  Raises ReadError, also where the client has no right to see one of `expected`, which a list
        of all topics leaves out."""
        budget = self.retry_budget()
        while True:
            found, problem = self._describe_once(names, only_existing=True)
            missing = [name for name in expected if name not in found]
            if problem is None and missing and not names:
                named, problem = self._describe_once(missing[:NAMED_AT_ONCE], only_existing=True)
                found |= named
            lagging = problem is None and (
                any(
                    name not in found or topic_id not in (ID_UNKNOWN, found[name].topic_id)
                    for name, topic_id in expected.items()
                )
                or any(name in found and number not in found[name].partitions for name, number in partitions)
            )
            if problem is None and not lagging:
                return found
            if problem is not None and not problem.curable:
                raise problem.error()
            self._nodes.begin_with_next()
            if not budget.wait(topic_unknown=lagging, reason=problem and problem.message):
                if problem is not None:
                    raise problem.error()
                return found

    def _describe_once(
        self, names: Sequence[str], *, only_existing: bool = False
    ) -> tuple[dict[str, TopicView], Problem | None]:
        def ask(channel: grpc.Channel, shown: Metadata) -> data_pb2.DescribeTopicsReply:
            request = data_pb2.DescribeTopicsRequest(topics=names)
            return data_pb2_grpc.DataStub(channel).DescribeTopics(
                request, timeout=DESCRIBE_TIMEOUT_S, metadata=shown
            )

        reply, problem = self._nodes.ask_any(ask)
        if reply is None:
            return {}, problem
        self._nodes.learn(reply.endpoints)
        found, problem = self._learn(reply, only_existing=only_existing)
        if problem is None and not only_existing and (left_out := set(names) - found.keys()):
            message = f"a node said nothing about topic {min(left_out)!r}"
            return {}, Problem(ErrorCode.UNKNOWN_SERVER_ERROR, message, curable=True)
        return found, problem

    def of_any_node(self, ask: Callable[[grpc.Channel, Metadata], Reply], what: str) -> Reply:
        """The answer of some node to an idempotent call about `what`.  Raises ReadError."""
        budget = self.retry_budget()
        while True:
            reply, problem = self._nodes.ask_any(ask)
            if reply is not None:
                return reply
            assert problem is not None
            if problem.method_unknown:
                raise ReadError(
                    ErrorCode.UNSUPPORTED_VERSION, f"the nodes are of a version without {what}: upgrade them"
                )
            if not problem.curable or not budget.wait(
                topic_unknown=problem.code in TOPIC_UNKNOWN, reason=problem.message
            ):
                raise problem.error()

    def _learn(
        self, reply: data_pb2.DescribeTopicsReply, *, only_existing: bool
    ) -> tuple[dict[str, TopicView], Problem | None]:
        found: dict[str, TopicView] = {}
        for topic in reply.topics:
            if topic.error_code:
                code = ErrorCode.from_wire(topic.error_code)
                if only_existing and code in TOPIC_UNKNOWN:
                    continue
                if code is ErrorCode.TOPIC_AUTHORIZATION_FAILED:
                    return {}, Problem(code, f"no right to DESCRIBE topic {topic.name!r}", curable=False)
                return {}, Problem(
                    code, f"topic {topic.name!r} does not exist", code in CURABLE, topic_unknown=True
                )
            for partition in topic.partitions:
                self.leaders.note(topic.name, partition.partition, leader_view(partition.leader))
            numbers = tuple(sorted(partition.partition for partition in topic.partitions))
            found[topic.name] = TopicView(topic.name, topic.topic_id, topic.internal, numbers)
        return found, None

    # Offsets

    def offsets(
        self, topic: TopicView, queries: Iterable[data_pb2.OffsetQuery], *, read_committed: bool
    ) -> dict[int, OffsetAnswer]:
        """As `offsets_of_topics`, for one topic."""
        asked = {(topic.name, query.partition): query for query in queries}
        found = self.offsets_of_topics({topic.name: topic}, asked, read_committed=read_committed)
        return {partition: answer for (_, partition), answer in found.items()}

    def offsets_of_topics(
        self,
        topics: Mapping[str, TopicView],
        queries: Mapping[Key, data_pb2.OffsetQuery],
        *,
        read_committed: bool,
    ) -> dict[Key, OffsetAnswer]:
        """Asks the leaders of the partitions, all at once; the result has every queried partition."""
        left = dict(queries)
        answers: dict[Key, OffsetAnswer] = {}
        budget = self.retry_budget()
        while left:
            before = len(left)
            problem = self._offsets_once(topics, left, answers, read_committed)
            if len(left) < before:
                budget.renew()
            if left and problem is not None:
                _wait_or_raise(budget, problem)
        return {key: answers[key] for key in queries}

    def _offsets_once(
        self,
        topics: Mapping[str, TopicView],
        left: dict[Key, data_pb2.OffsetQuery],
        answers: dict[Key, OffsetAnswer],
        read_committed: bool,
    ) -> Problem | None:
        """One round over all leaders; moves answered partitions from `left` to `answers`."""
        by_leader: dict[str, dict[str, list[data_pb2.OffsetQuery]]] = {}
        leaders, last = self._leaders_of(left)
        if last is not None and not last.curable:
            return last
        for (name, partition), leader in leaders.items():
            query = left[name, partition]
            query.leader_epoch = leader.leader_epoch
            by_leader.setdefault(leader.endpoint, {}).setdefault(name, []).append(query)

        def begin(endpoint: str, name: str) -> grpc.Future[data_pb2.OffsetsReply]:
            request = data_pb2.OffsetsRequest(
                topic=name,
                topic_id=topics[name].topic_id,
                isolation=_isolation(read_committed),
                queries=by_leader[endpoint][name],
            )
            return self._nodes.stub(endpoint).Offsets.future(
                request, timeout=CALL_TIMEOUT_S, metadata=self._nodes.shown(endpoint)
            )

        replies = ask_at_once(by_leader, begin)
        with closing(replies):
            for endpoint, name, reply in replies:
                if isinstance(reply, grpc.RpcError):
                    last = self._nodes.problem_of(reply, endpoint)
                    for query in by_leader[endpoint][name]:
                        self.leaders.forget(name, query.partition, last)
                    if not last.curable:
                        return last
                    continue
                for entry in reply.offsets:
                    if (name, entry.partition) not in left:
                        continue
                    if entry.error_code:
                        last = problem_of_partition(name, entry)
                        self.leaders.forget(name, entry.partition, last)
                        if not last.curable:
                            return last
                        continue
                    del left[name, entry.partition]
                    answers[name, entry.partition] = OffsetAnswer(
                        entry.offset, entry.log_start_offset, entry.last_stable_offset, entry.high_watermark
                    )
        if last is None and left:
            message = f"{min(left)[0]}: a query was not answered"
            return Problem(ErrorCode.UNKNOWN_SERVER_ERROR, message, curable=False)
        return last

    # Ranges

    def plan_ranges(
        self, topic: TopicView, partition: int, start: int, end: int, target_bytes: int
    ) -> list[SplitRange]:
        """Splits [start, end) by stored bytes; the ranges adjoin and cover it exactly."""
        request = data_pb2.PlanRangesRequest(
            topic=topic.name,
            topic_id=topic.topic_id,
            partition=partition,
            start=start,
            end=end,
            target_bytes=target_bytes,
        )

        def ask(stub: data_pb2_grpc.DataStub, leader_epoch: int, shown: Metadata) -> data_pb2.PlanRangesReply:
            request.leader_epoch = leader_epoch
            return stub.PlanRanges(request, timeout=CALL_TIMEOUT_S, metadata=shown)

        return _whole_split(request, self._of_leader(topic.name, partition, ask).ranges)

    def plan_many_ranges(
        self,
        topics: Mapping[str, TopicView],
        wanted: Mapping[Key, tuple[int, int]],
        target_bytes: int,
        *,
        estimate_decompressed: bool = False,
    ) -> dict[Key, list[SplitRange]]:
        """As `plan_ranges`, for many partitions with one request to each leader; `wanted` holds their [start,
        end).

        To estimate how much the ranges hold decompressed, the leaders read one batch of each partition."""
        left = {
            key: data_pb2.PlanRangesRequest(
                topic=key[0],
                topic_id=topics[key[0]].topic_id,
                partition=key[1],
                start=start,
                end=end,
                target_bytes=target_bytes,
            )
            for key, (start, end) in wanted.items()
        }
        found: dict[Key, list[SplitRange]] = {}
        budget = self.retry_budget()
        while left:
            before = len(left)
            problem = self._plan_once(topics, left, found, estimate_decompressed)
            if len(left) < before:
                budget.renew()
            elif problem is not None:
                _wait_or_raise(budget, problem)
        return {key: found[key] for key in wanted}

    def _plan_once(
        self,
        topics: Mapping[str, TopicView],
        left: dict[Key, data_pb2.PlanRangesRequest],
        found: dict[Key, list[SplitRange]],
        estimate_decompressed: bool,
    ) -> Problem | None:
        """One round over all leaders; moves answered partitions from `left` to `found`."""
        by_leader: dict[str, list[Key]] = {}
        leaders, last = self._leaders_of(left)
        if last is not None and not last.curable:
            return last
        for key, leader in leaders.items():
            left[key].leader_epoch = leader.leader_epoch
            by_leader.setdefault(leader.endpoint, []).append(key)
        parts = {
            endpoint: [
                keys[start : start + PLANNED_AT_ONCE] for start in range(0, len(keys), PLANNED_AT_ONCE)
            ]
            for endpoint, keys in by_leader.items()
        }

        def begin(endpoint: str, keys: list[Key]) -> grpc.Future[data_pb2.PlanManyRangesReply]:
            together = data_pb2.PlanManyRangesRequest(
                partitions=[left[key] for key in keys], estimate_decompressed=estimate_decompressed
            )
            return self._nodes.stub(endpoint).PlanManyRanges.future(
                together, timeout=CALL_TIMEOUT_S, metadata=self._nodes.shown(endpoint)
            )

        replies = ask_at_once(parts, begin)
        with closing(replies):
            for endpoint, keys, reply in replies:
                problem = self._take_plan(endpoint, keys, reply, left, found)
                if problem is not None and problem.method_unknown:
                    for key in keys:
                        request = left.pop(key)
                        found[key] = self.plan_ranges(
                            topics[key[0]], key[1], request.start, request.end, request.target_bytes
                        )
                elif problem is not None:
                    last = problem
                    if not last.curable:
                        return last
        return last

    def _take_plan(
        self,
        endpoint: str,
        keys: Sequence[Key],
        reply: data_pb2.PlanManyRangesReply | grpc.RpcError,
        left: dict[Key, data_pb2.PlanRangesRequest],
        found: dict[Key, list[SplitRange]],
    ) -> Problem | None:
        """Moves the partitions that a leader has planned from `left` to `found`."""
        if isinstance(reply, grpc.RpcError):
            problem = self._nodes.problem_of(reply, endpoint)
            if not problem.method_unknown:
                for key in keys:
                    self.leaders.forget(*key, problem)
            return problem
        last: Problem | None = None
        if not reply.partitions:
            return Problem(ErrorCode.UNKNOWN_SERVER_ERROR, f"{endpoint} planned no range", curable=True)
        # a leader may answer only a prefix
        for key, answer in zip(keys, reply.partitions, strict=False):
            if answer.error_code:
                last = problem_of_partition(key[0], answer)
                last.log_start_offset = answer.log_start_offset
                self.leaders.forget(*key, last)
                if not last.curable:
                    return last
            else:
                found[key] = _whole_split(left.pop(key), answer.ranges)
        return last

    def count_records(
        self,
        topic: str,
        topic_id: bytes,
        partition: int,
        start: int,
        end: int,
        *,
        read_committed: bool,
        at_cut: AtCut | None = None,
    ) -> int:
        """How many records a read of [start, end) would yield."""
        request = data_pb2.CountRecordsRequest(
            topic=topic,
            topic_id=topic_id,
            partition=partition,
            start=start,
            end=end,
            isolation=_isolation(read_committed, at_cut),
        )
        if at_cut is not None:
            request.only = at_cut.only
            if at_cut.settled_end is not None:
                request.settled_end = at_cut.settled_end
            for producer_id, first_offset in at_cut.transactions:
                request.transactions.add(producer_id=producer_id, first_offset=first_offset)

        def ask(
            stub: data_pb2_grpc.DataStub, leader_epoch: int, shown: Metadata
        ) -> data_pb2.CountRecordsReply:
            request.leader_epoch = leader_epoch
            return stub.CountRecords(request, timeout=COUNT_TIMEOUT_S, metadata=shown)

        reply = self._of_leader(topic, partition, ask)
        if at_cut is not None:
            require_at_cut(reply.at_cut, topic, partition)
        return reply.records

    def aborted_across_start(self, topic: str, topic_id: bytes, partition: int) -> tuple[int, dict[int, int]]:
        """Where the log begins; and of the aborted transactions that began below and have their marker above,
        the first offset by producer id."""
        view = TopicView(topic, topic_id, False, ())
        limits = self.offsets(view, [offset_query(partition)], read_committed=False)[partition]
        start = limits.log_start_offset
        if start == limits.high_watermark:
            return start, {}
        # the list of the transactions comes with a read, of whatever lies there
        request = data_pb2.ReadRangeRequest(
            topic=topic,
            topic_id=topic_id,
            partition=partition,
            start=start,
            end=start + 1,
            isolation=data_pb2.AT_CUT,
        )

        def ask(stub: data_pb2_grpc.DataStub, leader_epoch: int, shown: Metadata) -> data_pb2.RangeChunk:
            request.leader_epoch = leader_epoch
            call = stub.ReadRange(request, timeout=CALL_TIMEOUT_S, metadata=shown)
            try:
                return next(call, data_pb2.RangeChunk())
            finally:
                call.cancel()

        reply = self._of_leader(topic, partition, ask)
        require_at_cut(reply.at_cut, topic, partition)
        across = (each for each in reply.aborted_transactions if each.first_offset < start)
        return start, {each.producer_id: each.first_offset for each in across}

    def _of_leader(
        self, topic: str, partition: int, ask: Callable[[data_pb2_grpc.DataStub, int, Metadata], Reply]
    ) -> Reply:
        """The answer of the partition's leader to an idempotent call."""
        budget = self.retry_budget()
        while True:
            leader, problem = self._leader(topic, partition)
            if leader is not None:
                try:
                    shown = self._nodes.shown(leader.endpoint)
                    return ask(self._nodes.stub(leader.endpoint), leader.leader_epoch, shown)
                except grpc.RpcError as failure:
                    problem = self._nodes.problem_of(failure, leader.endpoint)
                    self.leaders.forget(topic, partition, problem)
            if problem is not None:
                _wait_or_raise(budget, problem)

    def open_stream(
        self,
        topic: str,
        topic_id: bytes,
        partition: int,
        start: int,
        end: int,
        *,
        read_committed: bool,
        at_cut: AtCut | None = None,
    ) -> Generator[RecordsChunk]:
        """One attempt to stream a range from the leader; raises StreamLost or ReadError, at once or in the
        middle.

        Some chunks only report that the node's queue moves (`waiting`)."""
        leader, problem = self._leader(topic, partition)
        if leader is None:
            assert problem is not None
            raise problem.error_of_stream()
        request = data_pb2.ReadRangeRequest(
            topic=topic,
            topic_id=topic_id,
            partition=partition,
            leader_epoch=leader.leader_epoch,
            start=start,
            end=end,
            isolation=_isolation(read_committed, at_cut),
            accepts_waiting=True,
            settled_end=None if at_cut is None else at_cut.settled_end,
        )
        try:
            shown = self._nodes.shown(leader.endpoint)
        except grpc.RpcError as failure:
            problem = self._nodes.problem_of(failure, leader.endpoint)
            self.leaders.forget(topic, partition, problem)
            raise problem.error_of_stream() from None
        channel = self._channels.to(leader.endpoint)
        connection = self._channels.ranges.take(leader.endpoint, channel, shown)
        if connection is None:
            yield from self._over_grpc(channel, leader.endpoint, request, shown)
        else:
            yield from self._over_frames(connection, leader.endpoint, request)

    def _over_frames(
        self, connection: RangeConnection, endpoint: str, request: data_pb2.ReadRangeRequest
    ) -> Generator[RecordsChunk]:
        watch = StallWatchdog(self._clock, self._stall_timeout_s, connection.shut)
        chunks, ranges = (
            connection.read(request, watch.renew, reads_files=self._reads_local_files),
            self._channels.ranges,
        )
        try:
            while True:
                with watch:
                    chunk = next(chunks, None)
                if chunk is None:
                    if not connection.has_answered:
                        ranges.avoid(endpoint, "it ended a range without a chunk")
                    return
                yield chunk
        except RangeRefused as refused:
            problem = self._nodes.judged(problem_of_detail(refused.detail), endpoint)
        except RangeConnectionLost as lost:
            message = f"{endpoint}: the connection for ranges was lost: {lost}"
            problem = self._nodes.judged(
                Problem(ErrorCode.NETWORK_EXCEPTION, message, curable=True), endpoint
            )
            if watch.has_stalled:
                problem = self._silent(endpoint)
            ranges.drop(endpoint)  # others may be as dead
            if not connection.has_answered:
                ranges.avoid(endpoint, problem.message)
        finally:
            watch.close()
            ranges.give_back(endpoint, connection)
        self.leaders.forget(request.topic, request.partition, problem)
        raise problem.error_of_stream()

    def _over_grpc(
        self, channel: grpc.Channel, endpoint: str, request: data_pb2.ReadRangeRequest, shown: Metadata
    ) -> Generator[RecordsChunk]:
        read_range = channel.unary_stream(READ_RANGE, data_pb2.ReadRangeRequest.SerializeToString, parse)
        call = read_range(request, metadata=shown)
        watch = StallWatchdog(self._clock, self._stall_timeout_s, call.cancel)
        try:
            while True:
                with watch:
                    chunk = next(call, None)
                if chunk is None:
                    return
                yield chunk
        except grpc.RpcError as failure:
            problem = self._nodes.problem_of(failure, endpoint)
            if watch.has_stalled:
                problem = self._silent(endpoint)
            self.leaders.forget(request.topic, request.partition, problem)
            raise problem.error_of_stream() from None
        finally:
            watch.close()
            call.cancel()  # without effect on a call that has ended

    def _silent(self, endpoint: str) -> Problem:
        message = f"{endpoint} was silent for {self._stall_timeout_s:g} s"
        return Problem(ErrorCode.REQUEST_TIMED_OUT, message, curable=True)

    # Leaders

    def _leaders_of(self, keys: Iterable[Key]) -> tuple[dict[Key, LeaderView], Problem | None]:
        """Of those that have one, as far as the nodes say; and what is wrong with the others.

        However many have none that is known, a node that does not answer is waited for once."""
        wanted, problem = list(keys), None
        names = list(
            dict.fromkeys(name for name, number in wanted if self.leaders.known(name, number) is None)
        )
        for start in range(0, len(names), NAMED_AT_ONCE):
            _, problem = self._describe_once(names[start : start + NAMED_AT_ONCE])
            if problem is not None:
                break
        found: dict[Key, LeaderView] = {}
        for name, number in wanted:
            leader = self.leaders.known(name, number)
            if leader is not None:
                found[name, number] = leader
            elif problem is None:
                message = f"{name}-{number} has no leader at present"
                problem = Problem(ErrorCode.LEADER_NOT_AVAILABLE, message, curable=True)
        return found, problem

    def _leader(self, topic: str, partition: int) -> tuple[LeaderView | None, Problem | None]:
        found, problem = self._leaders_of([(topic, partition)])
        return found.get((topic, partition)), problem


def offset_query(partition: int, *, timestamp_ms: int | None = None) -> data_pb2.OffsetQuery:
    """A query for the latest visible offset, or the first at or after a time; the answer also has the limits
    of the log."""
    if timestamp_ms is None:
        return data_pb2.OffsetQuery(partition=partition, kind=data_pb2.OffsetQuery.LATEST)
    return data_pb2.OffsetQuery(
        partition=partition, kind=data_pb2.OffsetQuery.AT_TIMESTAMP, timestamp_ms=timestamp_ms
    )


def _wait_or_raise(budget: RetryBudget, problem: Problem) -> None:
    """Waits before the next attempt; raises the problem's error when there is none."""
    if not problem.curable or not budget.wait(topic_unknown=problem.topic_unknown, reason=problem.message):
        raise problem.error()


def _whole_split(asked: data_pb2.PlanRangesRequest, answered: Iterable[data_pb2.Range]) -> list[SplitRange]:
    """The ranges of an answer; raises unless they adjoin and cover exactly the requested one."""
    ranges = [
        SplitRange(part.start, part.end, part.bytes_estimated, part.decompressed_bytes_estimated)
        for part in answered
    ]
    edges = [asked.start, *(part.end for part in ranges)]
    if [part.start for part in ranges] != edges[:-1] or edges[-1] != asked.end or edges != sorted(set(edges)):
        place = f"{asked.topic}-{asked.partition}"
        raise ReadError(
            ErrorCode.UNKNOWN_SERVER_ERROR, f"{place}: the split of [{asked.start}, {asked.end}) has gaps"
        )
    return ranges


def require_at_cut(is_known: bool, topic: str, partition: int) -> None:
    """Raises ReadError when the answer of a leader shows that it knows no cuts."""
    if not is_known:
        raise ReadError(
            ErrorCode.UNSUPPORTED_VERSION,
            f"{topic}-{partition}: the leader is of a version that knows no cuts: upgrade all nodes",
        )


def _isolation(read_committed: bool, at_cut: AtCut | None = None) -> data_pb2.Isolation.ValueType:
    if at_cut is not None:
        return data_pb2.AT_CUT
    return data_pb2.READ_COMMITTED if read_committed else data_pb2.READ_UNCOMMITTED
