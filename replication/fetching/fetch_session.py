"""What a leader remembers of one follower's fetching, so that a fetch names only the partitions that changed (KIP-227).

A follower that follows thousands of partitions would list all of them several hundred times a second.  Within a session it lists
a partition when its own position moved (or after an error), and the leader answers only partitions with news.  Partitions
announce their changes themselves (`FetchWatchers`), so an idle fetch costs nothing per partition on either side.

* One session a follower; a new one replaces it.  `session_epoch` counts the requests; a gap or a repetition ends the session, and
  the follower begins again with a full list.
* A partition answered with an error leaves the session: the follower lists it again when it believes it can be served.
* A fetch outside a session is a session of one request.
"""

from __future__ import annotations

from enum import Enum

from ...wire.errors import ErrorCode
from ...wire.fetch import FetchPartition, FetchRequest
from ..replica.delayed import WATERMARK_NEWS_S, FetchWaiter, FetchWatchers

Key = tuple[str, int]

FULL_EPOCH = 0
NO_SESSION_EPOCH = -1
SESSIONS_MAX = 1_000
WITHOUT_SESSION_MAX = 1_000
"""Of so many followers beyond those it is known what they were told; the rest never wait."""


Facts = tuple[object, int, int]
"""What a follower is told of a partition beside its records: one leadership, its high watermark and the log's start."""


class News(Enum):
    """How much a follower's fetch has to say of a partition."""

    NONE = 0
    WATERMARK = 1
    """Only that the high watermark is higher: it may wait for other news (`WATERMARK_NEWS_S`)."""
    NOW = 2


class FollowerSession:
    """The partitions that one follower listed, and which of them changed since they were last answered."""

    __slots__ = ("_told", "_watched", "closed", "dirty", "next_epoch", "node_id", "parts", "session_id", "waiter")

    def __init__(self, node_id: int, session_id: int = 0, told: dict[Key, Facts] | None = None) -> None:
        """`told`: what the follower was told of partitions before."""
        self.node_id = node_id
        self.session_id = session_id  # 0: of one request only
        self.next_epoch = 1
        self.parts: dict[Key, FetchPartition] = {}
        self.dirty: dict[Key, None] = {}
        self.closed = False
        self.waiter: FetchWaiter | None = None
        self._watched: dict[Key, FetchWatchers] = {}
        self._told: dict[Key, Facts] = {} if told is None else told

    def news(self, key: Key, facts: Facts) -> News:
        """What `facts` are within this session.  What an earlier session told may have been lost with it."""
        told = self._told.get(key)
        if told is None or told[0] is not facts[0] or told[2] < facts[2]:
            return News.NOW
        return News.NONE if told[1] >= facts[1] else News.WATERMARK

    def tell(self, key: Key, facts: Facts) -> None:
        """Notes what the follower is told now."""
        self._told[key] = facts

    def changed(self, key: Key) -> None:
        """A partition announces that it has something new."""
        self.dirty[key] = None
        if self.waiter is not None:
            self.waiter.wake()

    def watermark_moved(self, key: Key) -> None:
        """As `changed`, but this news may wait for other news for a moment."""
        self.dirty[key] = None
        if self.waiter is not None:
            self.waiter.wake_within(WATERMARK_NEWS_S)

    def watch(self, key: Key, watchers: FetchWatchers) -> None:
        """Follows the changes of a partition; a deleted and created one is followed anew."""
        before = self._watched.get(key)
        if before is not watchers and not self.closed:
            if before is not None:
                before.unsubscribe(self)
            self._watched[key] = watchers
            watchers.subscribe(self, key)

    def drop(self, key: Key) -> None:
        self.parts.pop(key, None)
        self.dirty.pop(key, None)
        self._told.pop(key, None)
        watchers = self._watched.pop(key, None)
        if watchers is not None:
            watchers.unsubscribe(self)

    def close(self) -> None:
        """Ends the session: no partition knows it any longer, and a fetch that waits in it is answered."""
        self.closed = True
        for watchers in self._watched.values():
            watchers.unsubscribe(self)
        self._watched.clear()
        if self.waiter is not None:
            self.waiter.wake()


class SessionTable:
    """The sessions of all followers of this node."""

    __slots__ = ("_next_id", "_sessions", "_told")

    def __init__(self, first_id: int = 1) -> None:
        """`first_id` should differ between starts of the process, so that an old session is not taken for a new one."""
        self._next_id = first_id
        self._sessions: dict[int, FollowerSession] = {}
        self._told: dict[int, dict[Key, Facts]] = {}  # those that are given no session, or would never wait

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
        """The session that a follower's request belongs to, with the request's changes to it made."""
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
            known = node_id in self._told or len(self._told) < WITHOUT_SESSION_MAX
            return FollowerSession(node_id, told=self._told.setdefault(node_id, {}) if known else None)
        session = FollowerSession(node_id, self._next_id)
        self._next_id = self._next_id % 0x7FFFFFFF + 1
        self._sessions[node_id] = session
        return session
