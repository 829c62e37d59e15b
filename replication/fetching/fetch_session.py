"""The leader's state of one follower's fetch session, within which a fetch names only the partitions that
changed (KIP-227).

A follower of thousands of partitions would list all of them several hundred times a second.  Within a session
it lists a partition when its own position has moved (or after an error), and the leader answers only
partitions with news.  A partition tells the session of each change (`FetchWatchers`), so an idle fetch costs
nothing per partition on either side.

* A follower has one session; a new one replaces it.  `session_epoch` counts the requests; a gap or a
  repetition ends the session, and the follower begins another one with a full list.
* A partition leaves the session when its answer is an error; the follower lists it again after a pause or
  newer metadata.
* A fetch outside a session has a session of its own, for one request.
"""

from __future__ import annotations

from enum import Enum
from typing import NamedTuple

from ...wire.errors import ErrorCode
from ...wire.fetch import FetchPartition, FetchRequest
from ..replica.waiters import WATERMARK_NEWS_S, FetchWaiter, FetchWatchers

Key = tuple[str, int]

FULL_EPOCH = 0
NO_SESSION_EPOCH = -1
SESSIONS_MAX = 1_000
WITHOUT_SESSION_MAX = 1_000
"""For so many followers without a session the table has what it sent them; the fetches of further ones never
wait."""


class Facts(NamedTuple):
    """What an answer says of a partition besides its records.  A change of any field is news."""

    leader: object
    """The leader's core: one for each leader epoch."""
    high_watermark: int
    log_start_offset: int


class News(Enum):
    """How urgent the news of a partition is for the follower."""

    NONE = 0
    WATERMARK = 1
    """Only the high watermark has moved: the answer may wait for other news (`WATERMARK_NEWS_S`)."""
    NOW = 2


class FollowerSession:
    """The partitions that one follower listed, and which of them changed since they were last answered."""

    __slots__ = (
        "_sent",
        "_watched",
        "closed",
        "dirty",
        "next_epoch",
        "node_id",
        "parts",
        "session_id",
        "waiter",
    )

    def __init__(self, node_id: int, session_id: int = 0, sent: dict[Key, Facts] | None = None) -> None:
        """`sent`: the facts that earlier answers sent to the follower, by partition."""
        self.node_id = node_id
        self.session_id = session_id  # 0: of one request only
        self.next_epoch = 1
        self.parts: dict[Key, FetchPartition] = {}
        self.dirty: dict[Key, None] = {}
        self.closed = False
        self.waiter: FetchWaiter | None = None
        self._watched: dict[Key, FetchWatchers] = {}
        self._sent: dict[Key, Facts] = {} if sent is None else sent

    def news(self, key: Key, facts: Facts) -> News:
        """Compares `facts` with what this session has sent; the answers of an earlier session may have been
        lost."""
        sent = self._sent.get(key)
        if sent is None or sent._replace(high_watermark=facts.high_watermark) != facts:
            return News.NOW
        return News.NONE if sent.high_watermark >= facts.high_watermark else News.WATERMARK

    def record_sent(self, key: Key, facts: Facts) -> None:
        """Notes the facts that the present answer sends."""
        self._sent[key] = facts

    def changed(self, key: Key) -> None:
        """The partition's: it has records, or its state has changed."""
        self.dirty[key] = None
        if self.waiter is not None:
            self.waiter.wake()

    def watermark_moved(self, key: Key) -> None:
        """The partition's: its high watermark has moved, which may wait a moment for other news."""
        self.dirty[key] = None
        if self.waiter is not None:
            self.waiter.wake_within(WATERMARK_NEWS_S)

    def watch(self, key: Key, watchers: FetchWatchers) -> None:
        """Subscribes to a partition's changes, once; again after the partition was deleted and created."""
        before = self._watched.get(key)
        if before is not watchers and not self.closed:
            if before is not None:
                before.unsubscribe(self)
            self._watched[key] = watchers
            watchers.subscribe(self, key)

    def drop(self, key: Key) -> None:
        self.parts.pop(key, None)
        self.dirty.pop(key, None)
        self._sent.pop(key, None)
        watchers = self._watched.pop(key, None)
        if watchers is not None:
            watchers.unsubscribe(self)

    def close(self) -> None:
        """Ends the session: unsubscribes from every partition, and wakes the fetch that waits in it."""
        self.closed = True
        for watchers in self._watched.values():
            watchers.unsubscribe(self)
        self._watched.clear()
        if self.waiter is not None:
            self.waiter.wake()


class SessionTable:
    """The sessions of all followers of this node."""

    __slots__ = ("_next_id", "_sent", "_sessions")

    def __init__(self, first_id: int = 1) -> None:
        """`first_id` should differ between starts of the process, so that an old session is not taken for a
        new one."""
        self._next_id = first_id
        self._sessions: dict[int, FollowerSession] = {}
        # of followers without a session; without it their fetches would never wait
        self._sent: dict[int, dict[Key, Facts]] = {}

    def __len__(self) -> int:
        return len(self._sessions)

    def current(self, node_id: int) -> FollowerSession | None:
        return self._sessions.get(node_id)

    def lists(self, node_id: int, key: Key, spec: FetchPartition) -> bool:
        """Whether the follower's session has a position of this partition, in the leader epoch of `spec`."""
        session = self._sessions.get(node_id)
        listed = None if session is None else session.parts.get(key)
        return listed is not None and listed.current_leader_epoch == spec.current_leader_epoch

    def open(self, request: FetchRequest) -> FollowerSession | ErrorCode:
        """The session of a follower's request, with the partitions that the request adds and removes;
        ErrorCode: the whole request is rejected."""
        if request.session_epoch == NO_SESSION_EPOCH:
            session = FollowerSession(request.replica_id)
        elif request.session_epoch == FULL_EPOCH:
            session = self._replace(request.replica_id)
        else:
            found = self._sessions.get(request.replica_id)
            if found is None or found.session_id != request.session_id:
                return ErrorCode.FETCH_SESSION_ID_NOT_FOUND
            if request.session_epoch != found.next_epoch:
                return ErrorCode.INVALID_FETCH_SESSION_EPOCH
            found.next_epoch = found.next_epoch % 0x7FFFFFFF + 1
            session = found
        for topic, partitions in request.forgotten_topics:
            for partition in partitions:
                session.drop((topic, partition))
        for topic, specs in request.topics:
            for spec in specs:
                session.parts[(topic, spec.partition)] = spec
        return session

    def _replace(self, node_id: int) -> FollowerSession:
        before = self._sessions.pop(node_id, None)
        if before is not None:
            before.close()
        if len(self._sessions) >= SESSIONS_MAX:
            known = node_id in self._sent or len(self._sent) < WITHOUT_SESSION_MAX
            return FollowerSession(node_id, sent=self._sent.setdefault(node_id, {}) if known else None)
        session = FollowerSession(node_id, self._next_id)
        self._next_id = self._next_id % 0x7FFFFFFF + 1
        self._sessions[node_id] = session
        return session
