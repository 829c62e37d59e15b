"""Fetch sessions of clients (KIP-227): a client names only the partitions that it changes, and gets only
those with news.

A session begins with a full fetch (epoch 0) and lives on with epochs 1, 2, ..; a fetch with epoch -1 ends it.
The errors are INVALID_FETCH_SESSION_EPOCH for another epoch than the next one, FETCH_SESSION_ID_NOT_FOUND for
an unknown session, and FETCH_SESSION_TOPIC_ID_ERROR (KIP-516) for a session that began with topic names and
goes on with ids, or the other way round; the client begins another session after each of them.

The cache is bounded, by sessions and by the partitions in all of them.  When it is full a new session takes
the place of another, as in Kafka: of one that was not used for two minutes, or else of the smallest of those
that are older than two minutes, if the new one has more partitions.  A client that gets no session (id 0)
names all its partitions in each fetch.  So does a client that names a topic with an invalid name: such a text
may be as long as a request, and a session would keep it.

The sessions of followers are in `fetch_session.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from uuid import UUID

from ...controller.state.model import TOPIC_NAME_LENGTH_MAX
from ...wire.errors import ErrorCode
from ...wire.fetch import FetchPartition, FetchRequest, FetchResponsePartition

FULL_EPOCH = 0
FINAL_EPOCH = -1
EVICTION_S = 120.0
SESSIONS_MAX = 1_000
PARTITIONS_MAX = 300_000
"""In all sessions together: some 200 bytes each."""

PartKey = tuple[str | UUID, int]
"""A partition as the request names it: by its topic's name, or by the topic's id (version 13 and later)."""

TopicNameOf = Callable[[UUID], str | None]

_ID_MAX = 0x7FFFFFFF


class FetchPart:
    """A partition in a client's session, and what the answers have sent of it."""

    __slots__ = ("high_watermark", "key", "log_start_offset", "spec", "topic")

    def __init__(self, key: PartKey, topic: str | None, spec: FetchPartition) -> None:
        self.key = key
        self.topic = topic  # None: no topic has the id
        self.spec = spec
        self.high_watermark = -1
        self.log_start_offset = -1

    def takes(self, answer: FetchResponsePartition) -> bool:
        """Notes what the answer sends; False when it has no news, and the response leaves the partition
        out."""
        news = (
            len(answer.records) > 0
            or answer.high_watermark != self.high_watermark
            or answer.log_start_offset != self.log_start_offset
            or answer.preferred_read_replica != -1
        )
        self.high_watermark, self.log_start_offset = answer.high_watermark, answer.log_start_offset
        if answer.error is not ErrorCode.NONE or answer.diverging_epoch is not None:
            self.high_watermark = -1  # so that the first answer without an error counts as news
            return True
        return news


class ClientSession:
    """The partitions that one client fetches.  Id 0: a session of one request."""

    __slots__ = ("by_id", "created_s", "epoch", "may_be_kept", "owner", "parts", "session_id", "used_s")

    def __init__(self, by_id: bool, now_s: float, owner: str = "") -> None:
        self.session_id = 0
        self.owner = owner
        self.by_id = by_id
        self.created_s = self.used_s = now_s
        self.epoch = 1  # of the next request
        self.parts: dict[PartKey, FetchPart] = {}
        self.may_be_kept = True

    def update(self, request: FetchRequest, name_of: TopicNameOf) -> None:
        """Makes the changes that a request names."""
        for key, spec in _asked(request):
            part = self.parts.get(key)
            if part is None:
                self.parts[key] = FetchPart(key, _name(key, name_of), spec)
                self.may_be_kept = self.may_be_kept and _is_short(key)
            else:
                part.spec = spec
        forgotten: list[tuple[str | UUID, list[int]]] = [*request.forgotten_topics, *request.forgotten_by_id]
        for topic, partitions in forgotten:
            for partition in partitions:
                self.parts.pop((topic, partition), None)
        if self.by_id:
            for part in self.parts.values():
                if part.topic is None:  # a topic may have become known since
                    part.topic = _name(part.key, name_of)

    def answered(self, part: FetchPart, answer: FetchResponsePartition) -> bool:
        """Whether the response has this answer.  A partition with records goes behind all others, so that
        each gets its turn."""
        if not part.takes(answer):
            return False
        if len(answer.records) and part.key in self.parts:
            self.parts[part.key] = self.parts.pop(part.key)
        return True


class ClientSessions:
    """The cache of sessions."""

    def __init__(
        self,
        random: Callable[[], float],
        sessions_max: int = SESSIONS_MAX,
        *,
        partitions_max: int = PARTITIONS_MAX,
    ) -> None:
        """`random()` gives a number below 1, for the ids."""
        self._random = random
        self._sessions_max = sessions_max
        self._partitions_max = partitions_max
        self._sessions: dict[int, ClientSession] = {}  # the least recently used first
        self._partitions = 0
        self.evictions = 0

    def __len__(self) -> int:
        return len(self._sessions)

    @property
    def partitions(self) -> int:
        """In all sessions together."""
        return self._partitions

    def open(
        self, request: FetchRequest, by_id: bool, name_of: TopicNameOf, now_s: float, owner: str = ""
    ) -> ClientSession | ErrorCode:
        """The request's session, changed as the request says; ErrorCode: the whole request is rejected.
        `owner`: the client's principal; the session of another one is as none."""
        found = self._sessions.get(request.session_id)
        if found is not None and found.owner != owner:
            found = None
        if request.session_epoch in (FULL_EPOCH, FINAL_EPOCH):
            if found is not None:
                self._remove(found.session_id)
            session = ClientSession(by_id, now_s, owner)
            session.update(request, name_of)
            if request.session_epoch == FULL_EPOCH:
                self._keep(session, now_s)
            return session
        if found is None:
            return ErrorCode.FETCH_SESSION_ID_NOT_FOUND
        if request.session_epoch != found.epoch:
            return ErrorCode.INVALID_FETCH_SESSION_EPOCH
        if found.by_id is not by_id:
            return ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR
        del self._sessions[found.session_id]  # and in again behind all others
        self._partitions -= len(found.parts)
        found.update(request, name_of)
        if not found.parts or not found.may_be_kept:
            found.session_id = 0  # the response ends the session, and still answers the fetch
            return found
        if self._partitions + len(found.parts) > self._partitions_max:
            return ErrorCode.FETCH_SESSION_ID_NOT_FOUND
        self._sessions[found.session_id] = found
        self._partitions += len(found.parts)
        found.used_s = now_s
        found.epoch = next_epoch(found.epoch)
        return found

    def is_current(self, session: ClientSession, asked_epoch: int) -> bool:
        """False when a later request of the session than that with `asked_epoch` has come."""
        return (
            session.session_id == 0 or asked_epoch <= FULL_EPOCH or session.epoch == next_epoch(asked_epoch)
        )

    def _keep(self, session: ClientSession, now_s: float) -> None:
        if len(session.parts) > self._partitions_max or not session.may_be_kept:
            return
        while (
            len(self._sessions) >= self._sessions_max
            or self._partitions + len(session.parts) > self._partitions_max
        ):
            evicted = self._evictable(len(session.parts), now_s)
            if evicted is None:
                return
            self._remove(evicted.session_id)
            self.evictions += 1
        session_id = 0
        while session_id == 0 or session_id in self._sessions:
            session_id = 1 + int(self._random() * (_ID_MAX - 1))
        session.session_id = session_id
        self._sessions[session_id] = session
        self._partitions += len(session.parts)

    def _evictable(self, size: int, now_s: float) -> ClientSession | None:
        oldest = next(iter(self._sessions.values()), None)
        if oldest is None or now_s - oldest.used_s > EVICTION_S:
            return oldest
        old = [session for session in self._sessions.values() if now_s - session.created_s > EVICTION_S]
        smallest = min(old, key=lambda session: len(session.parts), default=None)
        return smallest if smallest is not None and len(smallest.parts) < size else None

    def _remove(self, session_id: int) -> None:
        session = self._sessions.pop(session_id, None)
        if session is not None:
            self._partitions -= len(session.parts)
            session.session_id = 0


def next_epoch(epoch: int) -> int:
    return epoch % _ID_MAX + 1


def _asked(request: FetchRequest) -> Iterator[tuple[PartKey, FetchPartition]]:
    for topic, specs in request.topics:
        for spec in specs:
            yield (topic, spec.partition), spec
    for topic_id, specs in request.topics_by_id:
        for spec in specs:
            yield (topic_id, spec.partition), spec


def _is_short(key: PartKey) -> bool:
    topic, _ = key
    return not isinstance(topic, str) or (len(topic) <= TOPIC_NAME_LENGTH_MAX and topic.isascii())


def _name(key: PartKey, name_of: TopicNameOf) -> str | None:
    topic, _ = key
    return topic if isinstance(topic, str) else name_of(topic)
