"""Silence notes: records that tell the next coordinator which members sent no request, and which have left.

Sessions are volatile, and a new coordinator begins each of them anew: it cannot know when its predecessor
last received a heartbeat.  Where coordinators change more often than a session lasts, a dead member would
keep its partitions for ever.  So:

- A coordinator gives each member that it finds in its log a *grace period*: the time in which any live member
  finds the new coordinator and sends its next heartbeat.  For a member that sent none by then the coordinator
  writes a note: since when the member is silent, and how many coordinators have waited without receiving a
  request.  The member's next request removes the note.  Live members cost no record.
- A member whose note counts `GRACE_PERIODS_MISSED_MAX` coordinators has at the next one the rest of its
  session, and no less than a grace period.  So no coordinator removes a member before it missed
  `GRACE_PERIODS_MISSED_MAX` + 1 whole grace periods in a row, each measured by one coordinator's clock,
  however often coordinators change.  Whether the member was silent for its whole session, too, depends on
  clocks that agree: the note has the time of another node, and where that clock was behind, the session ends
  earlier by the difference.  A member without such a note has a whole session by this coordinator's own
  clock.
- A classic member that leaves, or whose session ends, stays in the log until the coordinator writes the next
  generation.  The note says that it has `LEFT`: a coordinator that finds both removes the member and lets the
  others rebalance.

The notes are records of __consumer_offsets with a key of Tidegate's own, which coordinators of older versions
skip: there a silent member may stay longer, and nothing else changes.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator
from typing import Final, NamedTuple

from .fields import FieldReader, FieldWriter, RecordFormatError
from .outcome import CoordinatorRecord

KEY_VERSION: Final = 30_000
"""Far above the key versions of Kafka, which count up from 0."""
GRACE_PERIODS_MISSED_MAX: Final = 2
LEFT: Final = -1
NOTES_MAX: Final = 1_000
NOTES_BYTES_MAX: Final = 500_000
"""Bounds the keys and values of one batch, well below the 1 MiB that the log takes.  Beyond either bound the
next tick writes the other notes."""
RETRY_MS: Final = 1_000
GRACE_EXTRA_MS: Final = 1_000
"""The part of a grace period in which the member looks for the new coordinator, beside its heartbeat
interval."""
_VERSION: Final = 0


class NoteKey(NamedTuple):
    """The member that a note is about."""

    group_id: str
    member_id: str


class Note(NamedTuple):
    """since_ms: no coordinator has received a request of the member from then on.  missed: how many
    coordinators have waited for a whole grace period without a request, or LEFT."""

    since_ms: int
    missed: int


def encode_key(group_id: str, member_id: str) -> bytes:
    writer = FieldWriter()
    writer.int16(KEY_VERSION)
    writer.string(group_id)
    writer.string(member_id)
    return writer.finish()


def decode_key(data: bytes) -> NoteKey | None:
    """None for records of another kind."""
    reader = FieldReader(data)
    if reader.int16() != KEY_VERSION:
        return None
    key = NoteKey(reader.string(), reader.string())
    reader.finish()
    return key


def encode_value(note: Note) -> bytes:
    writer = FieldWriter(flexible=True)
    writer.int16(_VERSION)
    writer.int64(note.since_ms)
    writer.int16(note.missed)
    writer.tags({})
    return writer.finish()


def decode_value(data: bytes) -> Note:
    reader = FieldReader(data, flexible=True)
    version = reader.int16()
    if version != _VERSION:
        raise RecordFormatError(
            f"a note of silence of version {version} is unknown: a later release wrote it"
        )
    note = Note(reader.int64(), reader.int16())
    reader.tags()
    reader.finish()
    return note


class Silences:
    """The notes of one shard, and the grace periods that run.  `replay` alone changes notes."""

    def __init__(self) -> None:
        self.notes: dict[str, dict[str, Note]] = {}
        self._grace_periods: dict[str, dict[str, int]] = {}
        self._began_ms = 0
        self._next_ms = 2**63

    def replay(self, key: NoteKey, data: bytes | None) -> None:
        self._grace_periods.get(key.group_id, {}).pop(key.member_id, None)
        if data is not None:
            self.notes.setdefault(key.group_id, {})[key.member_id] = decode_value(data)
            return
        notes = self.notes.get(key.group_id, {})
        notes.pop(key.member_id, None)
        if not notes:
            self.notes.pop(key.group_id, None)

    # --- a new coordinator ----------------------------------------------------------------------------------

    def begin_grace_period(
        self, group_id: str, member_id: str, grace_ms: int, session_ms: int, now_ms: int
    ) -> int:
        """A new coordinator begins the member's session; returns when the session ends unless the member
        sends a request."""
        self._began_ms = now_ms
        self._grace_periods.setdefault(group_id, {})[member_id] = now_ms + grace_ms
        self._next_ms = min(self._next_ms, now_ms + grace_ms)
        note = self.notes.get(group_id, {}).get(member_id)
        if note is None or note.missed < GRACE_PERIODS_MISSED_MAX:
            return now_ms + session_ms
        return max(now_ms + min(grace_ms, session_ms), min(now_ms, note.since_ms) + session_ms)

    def begin_classic_grace_period(self, group_id: str, member_id: str, session_ms: int, now_ms: int) -> int:
        """For a member that chooses its heartbeat interval: a third of its session at most, as Kafka's
        clients require."""
        return self.begin_grace_period(
            group_id, member_id, session_ms // 3 + GRACE_EXTRA_MS, session_ms, now_ms
        )

    def has_left(self, group_id: str, member_id: str) -> bool:
        note = self.notes.get(group_id, {}).get(member_id)
        return note is not None and note.missed == LEFT

    def departed_members(self, group_id: str) -> list[str]:
        return [member_id for member_id, note in self.notes.get(group_id, {}).items() if note.missed == LEFT]

    def resumed(self, away_ms: int) -> None:
        """The coordinator received no request for `away_ms`: every grace period ends later by that time."""
        self._next_ms += away_ms
        for periods in self._grace_periods.values():
            for member_id in periods:
                periods[member_id] += away_ms

    # --- what is written ------------------------------------------------------------------------------------

    def request_received(self, group_id: str, member_id: str) -> list[CoordinatorRecord]:
        """The member has sent a request: ends its grace period; returns the tombstone of its note, if there
        is one."""
        periods = self._grace_periods.get(group_id)
        if periods is not None:
            periods.pop(member_id, None)
            if not periods:
                del self._grace_periods[group_id]
        return self.forget(group_id, (member_id,))

    def forget(self, group_id: str, member_ids: Iterable[str] | None = None) -> list[CoordinatorRecord]:
        """Tombstones for the notes of these members, or of the whole group."""
        notes = self.notes.get(group_id)
        if notes is None:
            return []
        wanted = (
            notes if member_ids is None else (member_id for member_id in member_ids if member_id in notes)
        )
        return [CoordinatorRecord(encode_key(group_id, member_id), None) for member_id in wanted]

    def forget_all_but(self, group_id: str, member_ids: Collection[str]) -> list[CoordinatorRecord]:
        notes = self.notes.get(group_id, {})
        return self.forget(group_id, [member_id for member_id in notes if member_id not in member_ids])

    def left(self, group_id: str, member_ids: Iterable[str], now_ms: int) -> list[CoordinatorRecord]:
        """Notes about members of the stored generation that have left."""
        value = encode_value(Note(now_ms, LEFT))
        return [
            CoordinatorRecord(encode_key(group_id, member_id), value)
            for member_id in member_ids
            if not self.has_left(group_id, member_id)
        ]

    def is_due(self, now_ms: int) -> bool:
        return self._next_ms <= now_ms

    def on_timer(self, now_ms: int, is_member: Callable[[str, str], bool]) -> list[CoordinatorRecord]:
        """Notes about the members whose grace period is over."""
        written: list[CoordinatorRecord] = []
        written_bytes = 0
        for group_id, member_id in list(self._overdue(now_ms)):
            if len(written) == NOTES_MAX or written_bytes >= NOTES_BYTES_MAX:
                break
            note = self.notes.get(group_id, {}).get(member_id, Note(self._began_ms, 0))
            if not is_member(group_id, member_id) or not 0 <= note.missed < GRACE_PERIODS_MISSED_MAX:
                del self._grace_periods[group_id][member_id]
                continue
            # replay removes it, unless the append fails
            self._grace_periods[group_id][member_id] = now_ms + RETRY_MS
            key, value = encode_key(group_id, member_id), encode_value(Note(note.since_ms, note.missed + 1))
            written.append(CoordinatorRecord(key, value))
            written_bytes += len(key) + len(value)
        self._grace_periods = {
            group_id: periods for group_id, periods in self._grace_periods.items() if periods
        }
        ends_ms = (until_ms for periods in self._grace_periods.values() for until_ms in periods.values())
        self._next_ms = min(ends_ms, default=2**63)
        return written

    def _overdue(self, now_ms: int) -> Iterator[tuple[str, str]]:
        for group_id, periods in self._grace_periods.items():
            yield from (
                (group_id, member_id) for member_id, until_ms in periods.items() if until_ms <= now_ms
            )
