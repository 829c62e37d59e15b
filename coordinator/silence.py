"""What must outlive a coordinator of its members' silence: who was not heard of, and who has left.

Sessions are volatile, and a new coordinator begins each of them anew: it cannot know who was heard a moment before.  Where
coordinators change more often than a session lasts, a member that is dead would then keep its partitions for ever.  So:

- A coordinator gives each member that it finds in its log a *chance*: the time in which any live member finds the new coordinator
  and sends its next heartbeat.  Whoever was not heard by then is noted in the log, with the time since when and how many
  coordinators have waited in vain; the first word of the member takes the note away.  Live members cost no record.
- A member whose note counts `CHANCES_MISSED_MAX` coordinators has at the next one what is left of its session, and no less than
  a chance.  So none is removed before it missed `CHANCES_MISSED_MAX` + 1 whole chances in a row, each measured by the clock of
  the coordinator that gave it, however short the lives of the coordinators are.  That it was silent for its whole session too is
  as true as the coordinators' clocks are alike: the note's time is that of another node, and where that clock was behind, the
  session ends earlier by the difference.  A member with no such note has a whole session by this coordinator's own clock.
- A classic member that leaves, or whose session ends, is in the log still, until the next generation is written there.  The note
  says that it has `LEFT`: the coordinator that finds both removes the member and lets the others rebalance.

The notes are records of __consumer_offsets with a key of our own, which coordinators of older versions skip: a member may stay
longer there, but nothing else follows from them.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator
from typing import Final, NamedTuple

from .fields import FieldReader, FieldWriter, RecordFormatError
from .outcome import CoordinatorRecord

KEY_VERSION: Final = 30_000
"""Kafka counts its kinds of records up from 0."""
CHANCES_MISSED_MAX: Final = 2
LEFT: Final = -1
NOTES_MAX: Final = 1_000
NOTES_BYTES_MAX: Final = 500_000
"""Of keys and values in one batch, which is then well below the 1 MiB that the log takes; beyond either bound the other notes
follow with the next tick."""
RETRY_MS: Final = 1_000
CHANCE_EXTRA_MS: Final = 1_000
"""To find a new coordinator, beside the time in which a member sends its next heartbeat."""
_VERSION: Final = 0


class NoteKey(NamedTuple):
    """Whose silence a note is about."""

    group_id: str
    member_id: str


class Note(NamedTuple):
    """since_ms: no coordinator has heard of the member from then on.  missed: how many coordinators gave it a chance, or LEFT."""

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
        raise RecordFormatError(f"a note of silence of version {version} is unknown: a later release wrote it")
    note = Note(reader.int64(), reader.int16())
    reader.tags()
    reader.finish()
    return note


class Silences:
    """The notes of one shard, and the chances that run.  `replay` alone changes notes."""

    def __init__(self) -> None:
        self.notes: dict[str, dict[str, Note]] = {}
        self._chances: dict[str, dict[str, int]] = {}
        self._began_ms = 0
        self._next_ms = 2**63

    def replay(self, key: NoteKey, data: bytes | None) -> None:
        self._chances.get(key.group_id, {}).pop(key.member_id, None)
        if data is not None:
            self.notes.setdefault(key.group_id, {})[key.member_id] = decode_value(data)
            return
        notes = self.notes.get(key.group_id, {})
        notes.pop(key.member_id, None)
        if not notes:
            self.notes.pop(key.group_id, None)

    # --- a new coordinator -------------------------------------------------------------------------------------------------

    def give_chance(self, group_id: str, member_id: str, chance_ms: int, session_ms: int, now_ms: int) -> int:
        """A coordinator begins with this member; returns when its session ends unless it is heard."""
        self._began_ms = now_ms
        self._chances.setdefault(group_id, {})[member_id] = now_ms + chance_ms
        self._next_ms = min(self._next_ms, now_ms + chance_ms)
        note = self.notes.get(group_id, {}).get(member_id)
        if note is None or note.missed < CHANCES_MISSED_MAX:
            return now_ms + session_ms
        return max(now_ms + min(chance_ms, session_ms), min(now_ms, note.since_ms) + session_ms)

    def give_classic_chance(self, group_id: str, member_id: str, session_ms: int, now_ms: int) -> int:
        """To a member whose heartbeat interval is its own choice: a third of its session at most, as its client makes sure."""
        return self.give_chance(group_id, member_id, session_ms // 3 + CHANCE_EXTRA_MS, session_ms, now_ms)

    def has_left(self, group_id: str, member_id: str) -> bool:
        note = self.notes.get(group_id, {}).get(member_id)
        return note is not None and note.missed == LEFT

    def who_left(self, group_id: str) -> list[str]:
        return [member_id for member_id, note in self.notes.get(group_id, {}).items() if note.missed == LEFT]

    def resumed(self, away_ms: int) -> None:
        """Nobody could be heard for so long."""
        self._next_ms += away_ms
        for chances in self._chances.values():
            for member_id in chances:
                chances[member_id] += away_ms

    # --- what is written ---------------------------------------------------------------------------------------------------

    def heard(self, group_id: str, member_id: str) -> list[CoordinatorRecord]:
        """The member has spoken: its note, if there is one, goes."""
        chances = self._chances.get(group_id)
        if chances is not None:
            chances.pop(member_id, None)
            if not chances:
                del self._chances[group_id]
        return self.forget(group_id, (member_id,))

    def forget(self, group_id: str, member_ids: Iterable[str] | None = None) -> list[CoordinatorRecord]:
        """Tombstones for the notes of these members, or of the whole group."""
        notes = self.notes.get(group_id)
        if notes is None:
            return []
        wanted = notes if member_ids is None else (member_id for member_id in member_ids if member_id in notes)
        return [CoordinatorRecord(encode_key(group_id, member_id), None) for member_id in wanted]

    def forget_all_but(self, group_id: str, member_ids: Collection[str]) -> list[CoordinatorRecord]:
        notes = self.notes.get(group_id, {})
        return self.forget(group_id, [member_id for member_id in notes if member_id not in member_ids])

    def left(self, group_id: str, member_ids: Iterable[str], now_ms: int) -> list[CoordinatorRecord]:
        """Members that are in the log as members of the present generation, and are none any more."""
        value = encode_value(Note(now_ms, LEFT))
        return [
            CoordinatorRecord(encode_key(group_id, member_id), value)
            for member_id in member_ids
            if not self.has_left(group_id, member_id)
        ]

    def is_due(self, now_ms: int) -> bool:
        return self._next_ms <= now_ms

    def on_timer(self, now_ms: int, is_member: Callable[[str, str], bool]) -> list[CoordinatorRecord]:
        """Notes about those whose chance is over."""
        written: list[CoordinatorRecord] = []
        written_bytes = 0
        for group_id, member_id in list(self._overdue(now_ms)):
            if len(written) == NOTES_MAX or written_bytes >= NOTES_BYTES_MAX:
                break
            note = self.notes.get(group_id, {}).get(member_id, Note(self._began_ms, 0))
            if not is_member(group_id, member_id) or not 0 <= note.missed < CHANCES_MISSED_MAX:
                del self._chances[group_id][member_id]
                continue
            self._chances[group_id][member_id] = now_ms + RETRY_MS  # replay takes it away, unless the append is refused
            key, value = encode_key(group_id, member_id), encode_value(Note(note.since_ms, note.missed + 1))
            written.append(CoordinatorRecord(key, value))
            written_bytes += len(key) + len(value)
        self._chances = {group_id: chances for group_id, chances in self._chances.items() if chances}
        self._next_ms = min((until_ms for chances in self._chances.values() for until_ms in chances.values()), default=2**63)
        return written

    def _overdue(self, now_ms: int) -> Iterator[tuple[str, str]]:
        for group_id, chances in self._chances.items():
            yield from ((group_id, member_id) for member_id, until_ms in chances.items() if until_ms <= now_ms)
