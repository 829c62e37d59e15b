"""The durable part of a quorum member: its log entries, its term and its vote.

Two files in one folder, which comes into being whole (made under another name, then renamed) and never half;
beside them, a note of how far it was durable (`durable_note.py`):

* `entries`: records appended one after the other, `[length u32][crc u32][index u64][term u64][durable
  u64][command]`, the CRC over everything after it.  `durable` is the last index known to be on disk when the
  record was written.
* `vote`: cluster, node, term and vote, the journal's own id, whether it has a vote in the quorum at all, and
  the voter records that it knows; replaced as a whole by every change (temporary file, fsync, rename, fsync
  of the folder).

What it promises
* After `sync()` everything added before is on disk.  The core acknowledges and counts no entry, and gives no
  vote, before that.
* One of the two files missing, or a folder of another cluster or node: refuses to open: a voter without its
  vote file could vote twice.  No folder at all: a new journal under a new random id, which has no vote
  (`voting`) until the quorum as a whole is formed or takes it back (`membership`).  An empty folder never
  votes in place of the lost one.
* A torn tail (a crash before `sync`) is truncated.  Damage to entries known to have been durable never is: an
  unreadable record followed by one that says "what you cannot read was durable" stops the node.  That is what
  `durable` is for: unsynced pages reach the disk in any order, so a readable record after an unreadable one
  proves nothing by itself. The note distinguishes a disk that changes the very last batch afterwards, or
  shortens the file, from a torn tail.
* A failed write or sync is final: the error goes up (OSError) and the journal refuses every further use.
* What is read at the opening is made durable before anything else.  A process that was killed, or stopped
  because a sync failed, leaves in the page cache what never reached the disk; taken for durable, it would be
  acknowledged and lost in a power cut.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, overload

from ...runtime import faults, logs
from .durable_note import DurableNote, LogPosition
from .failure import RaftFatal
from .messages import Entry, VoterRecord

if TYPE_CHECKING:
    from ...runtime.disk import Disk, File

log = logs.get(__name__)

NO_VOTE = -1
JOURNAL_ID_MAX = 2**64 - 1
FIRST_ENTRY: Entry = (b"\x01", 1, 0)  # every log begins with this no-op: a common point to agree on

_HEAD = struct.Struct("<II")
_BODY = struct.Struct("<QQQ")
_VOTE = struct.Struct("<4sHiQiH")
_VOTE_MAGIC = b"TGRV"
_VOTE_FORMAT_WITHOUT_ID = 1  # of the version before journals had ids
_VOTE_FORMAT = 2
_IDENTITY = struct.Struct("<QBB")  # journal id, voting, how many voter records
_VOTER_RECORD = struct.Struct("<iQQ")
_CRC = struct.Struct("<I")
_COMMAND_BYTES_MAX = 64 << 20
# how far past the expected index a record can be while we search behind a damaged one
_INDEX_SPAN_MAX = 1 << 24


class DurableJournal:
    """A sequence of entries over the Disk port.  Used by the Raft thread only."""

    def __init__(self, disk: Disk, folder: Path, *, node_id: int, new_id: int, cluster_id: str = "") -> None:
        """`new_id`: random and not 0; the journal's id when it is made now (or was, by a version without
        ids)."""
        self._disk = disk
        self._entries_path = folder / "entries"
        self._vote_path = folder / "vote"
        self._node_id = node_id
        self._cluster_id = cluster_id
        self._entries: list[Entry] = []
        self._positions: list[int] = []
        self._pending: list[bytes] = []
        self._dirty = False
        self._failed = False
        self._written_bytes = 0
        self._end = 0
        self._term = 0
        self._vote = NO_VOTE
        self._id = new_id
        self._voting = False
        self._voter_records: dict[int, VoterRecord] = {}
        self.durable_index = 0
        self.syncs = 0
        if not disk.exists(folder):
            self._create(folder)
        version = self._read_vote()
        if not disk.exists(self._entries_path):
            raise RaftFatal(
                f"{self._entries_path} is missing although {self._vote_path.name} is there: refusing to start"
            )
        self._file: File = disk.open(self._entries_path)
        self._note = DurableNote(disk, folder / "durable")
        self._make_names_durable(folder)
        self._load()
        self._note.raise_to(self._end_position())
        if version == _VOTE_FORMAT_WITHOUT_ID:
            self._voting = not self.is_empty  # it may have acknowledged or voted
            disk.write_atomic(self._vote_path, self._encode_vote(self._term, self._vote))

    # ---- opening -------------------------------------------------------------------------------------------

    def _create(self, folder: Path) -> None:
        making = folder.with_name(folder.name + ".making")
        if self._disk.exists(making):
            self._disk.remove_tree(making)  # a crash during the very first start: nothing in it was ever used
        self._disk.make_directory(making)
        self._disk.write_atomic(making / "vote", self._encode_vote(0, NO_VOTE))
        self._disk.write_atomic(making / "entries", _encode_record(FIRST_ENTRY, 0))
        self._disk.rename(making, folder)
        self._disk.sync_directory(folder.parent)

    def _read_vote(self) -> int:
        if not self._disk.exists(self._vote_path):
            raise RaftFatal(
                f"{self._vote_path} is missing: a vote may have been given and forgotten, refusing to start"
            )
        data = self._disk.read(self._vote_path)
        body = data[_CRC.size :]
        if len(data) < _CRC.size + _VOTE.size or _CRC.unpack_from(data)[0] != zlib.crc32(body):
            raise RaftFatal(f"{self._vote_path} is damaged: refusing to start without its term and vote")
        magic, version, node_id, term, vote, name_length = _VOTE.unpack_from(body)
        if magic != _VOTE_MAGIC or version not in (_VOTE_FORMAT_WITHOUT_ID, _VOTE_FORMAT):
            raise RaftFatal(f"{self._vote_path} has a format that this version does not know")
        stored_cluster = body[_VOTE.size : _VOTE.size + name_length].decode()
        if node_id != self._node_id:
            raise RaftFatal(
                f"{self._vote_path} belongs to node {node_id}, this is node {self._node_id}: wrong "
                "data folder?"
            )
        if stored_cluster and self._cluster_id and stored_cluster != self._cluster_id:
            message = (
                f"belongs to cluster {stored_cluster}, this node is configured for {self._cluster_id}: "
                "wrong data folder?"
            )
            raise RaftFatal(f"{self._vote_path} {message}")
        self._cluster_id = stored_cluster or self._cluster_id
        self._term, self._vote = int(term), int(vote)
        if version == _VOTE_FORMAT:
            position = _VOTE.size + name_length
            self._id, voting, _ = _IDENTITY.unpack_from(body, position)
            self._voting = bool(voting)
            records = map(VoterRecord._make, _VOTER_RECORD.iter_unpack(body[position + _IDENTITY.size :]))
            self._voter_records = {record.voter: record for record in records}
        return int(version)

    def _make_names_durable(self, folder: Path) -> None:
        """Syncs the directories: renames of a vote, of trimmed entries, of a snapshot or of the folder may
        not be durable yet, nor the creation of the folder above it."""
        for directory in (folder, folder.parent, folder.parent.parent):
            self._disk.sync_directory(directory)

    def _load(self) -> None:
        data = self._file.read_at(0, self._file.size())
        position = claimed = 0
        while position < len(data):
            record = _decode_record(data, position)
            if record is None or not self._follows(record[0]):
                self._truncate_tail(data, position)
                break
            self._entries.append(record[0])
            self._positions.append(position)
            position += record[2]
            claimed = record[1]
        if not self._entries:
            raise RaftFatal(f"{self._entries_path} has no readable entry")
        self._require_what_was_durable()
        self._end = self._written_bytes = position
        self._make_durable(claimed, data)
        self.durable_index = self._entries[-1][1]

    def _make_durable(self, claimed: int, data: bytes) -> None:
        """Writes again and syncs the entries that the last record does not call durable: after a failed sync
        the kernel may count their pages as clean, and the next sync would succeed without them."""
        first, last = self._entries[0][1], self._entries[-1][1]
        if claimed < last:
            position = self._positions[max(claimed + 1 - first, 0)]
            self._file.write_at(position, data[position : self._end])
        self._file.sync_data()  # also a truncation may not be durable yet

    def _require_what_was_durable(self) -> None:
        if self._note.position > self._end_position():
            term, index = self._note.position
            raise RaftFatal(
                f"{self._entries_path} is damaged: it ends at entry {self._entries[-1][1]}, and "
                f"entry {index} of term {term} was"
                " durable; remove this folder, and the quorum takes the node back (operations.md)"
            )

    def _end_position(self) -> LogPosition:
        _, index, term = self._entries[-1]
        return term, index

    def _follows(self, entry: Entry) -> bool:
        """A record of an older term, or out of order, is a remainder of an earlier, truncated tail."""
        if not self._entries:
            return True
        _, last_index, last_term = self._entries[-1]
        return entry[1] == last_index + 1 and entry[2] >= last_term

    def _truncate_tail(self, data: bytes, position: int) -> None:
        if not self._entries:
            raise RaftFatal(f"{self._entries_path} is damaged at its very beginning")
        term, index = self._end_position()
        expected = index + 1
        proof = _find_proof_of_damage(data, position, expected, term)
        if proof is not None:
            raise RaftFatal(
                f"{self._entries_path} is damaged at byte {position}: entry {expected} cannot be "
                "read, but the record at byte "
                f"{proof} says that it was durable; remove this folder, and the quorum takes the "
                "node back (operations.md)"
            )
        self._require_what_was_durable()
        log.warning(
            "journal_tail_cut",
            path=self._entries_path,
            at=position,
            cut_bytes=len(data) - position,
            last=expected - 1,
        )
        self._file.truncate(position)
        self._file.sync_data()

    # ---- entries -------------------------------------------------------------------------------------------

    def __len__(self) -> int:
        return len(self._entries)

    @overload
    def __getitem__(self, item: int) -> Entry: ...
    @overload
    def __getitem__(self, item: slice) -> list[Entry]: ...
    def __getitem__(self, item: int | slice) -> Entry | list[Entry]:
        return self._entries[item]

    def add(self, command: bytes, index: int, term: int) -> None:
        """Appends in memory; written and durable with the next `sync()`."""
        self.extend([(command, index, term)])

    def extend(self, entries: Sequence[Entry]) -> None:
        """Appends in memory; written and durable with the next `sync()`."""
        self._require_usable()
        last, end, durable_index = self._entries[-1][1], self._end, self.durable_index
        for entry in entries:
            if entry[1] != last + 1:
                raise RaftFatal(f"entry {entry[1]} after entry {last}")
            record = _encode_record(entry, durable_index)
            self._entries.append(entry)
            self._positions.append(end)
            self._pending.append(record)
            last = entry[1]
            end += len(record)
            self._end, self._dirty = end, True

    @property
    def dirty(self) -> bool:
        """Whether entries were added or truncated since the last `sync()`."""
        return self._dirty

    @property
    def size_bytes(self) -> int:
        return self._end

    def sync(self) -> None:
        """One write and one fdatasync for everything since the last time (group commit)."""
        if not self._dirty:
            return
        self._require_usable()
        last_index = self._entries[-1][1]
        faults.point("raft.journal.before_write", index=last_index)
        try:
            self._write_pending()
            faults.point("raft.journal.before_sync", index=last_index)
            self._file.sync_data()
            self._note.raise_to(self._end_position())
        except OSError:
            # the kernel may have dropped the pages: a later sync that succeeds would prove nothing
            self._failed = True
            raise
        faults.point("raft.journal.after_sync", index=last_index)
        self._dirty = False
        self.durable_index = last_index
        self.syncs += 1

    def _write_pending(self) -> None:
        if self._pending:
            data = b"".join(self._pending)
            self._file.write_at(self._written_bytes, data)
            self._written_bytes += len(data)
            self._pending.clear()

    def truncate_from(self, index: int) -> None:
        """Removes entry `index` and all after it: they conflict with the leader.  Durable before it returns,
        because a new record beside the remains of the old tail would look like damage."""
        position = index - self._entries[0][1]
        if position >= len(self._entries):
            return
        self._require_usable()
        try:
            self._write_pending()
            self._end = self._written_bytes = self._positions[position]
            del self._entries[position:], self._positions[position:]
            self._note.lower_to(self._end_position())
            self._file.truncate(self._end)
            self._file.sync_data()
        except OSError:
            self._failed = True
            raise
        self.durable_index = self._entries[-1][1]
        self._dirty = False

    def trim_to(self, index: int) -> None:
        """Removes the entries before `index`; the caller has made the snapshot that holds them durable."""
        position = index - self._entries[0][1]
        if position > 0:
            self._rewrite(self._entries[position:])

    def reset(self, entries: Sequence[Entry]) -> None:
        """Replaces everything: after a snapshot from the leader."""
        self._rewrite(entries)

    def _rewrite(self, entries: Sequence[Entry]) -> None:
        self._require_usable()
        if not entries:
            raise RaftFatal("a journal keeps at least one entry")
        positions, parts, end = [], [], 0
        for entry in entries:
            record = _encode_record(entry, entries[-1][1])
            positions.append(end)
            parts.append(record)
            end += len(record)
        try:
            faults.point("raft.journal.before_rewrite")
            self._note.lower_to((entries[-1][2], entries[-1][1]))
            # the old file is whole until the new one is durable
            self._disk.write_atomic(self._entries_path, b"".join(parts))
            faults.point("raft.journal.after_rewrite")
            self._file.close()
            self._file = self._disk.open(self._entries_path)
        except OSError:
            self._failed = True
            raise
        self._entries, self._positions = list(entries), positions
        self._end = self._written_bytes = end
        self._pending.clear()
        self._dirty = False
        self.durable_index = entries[-1][1]

    def close(self) -> None:
        self._file.close()
        self._note.close()

    def _require_usable(self) -> None:
        if self._failed:
            raise RaftFatal(f"{self._entries_path} failed before and cannot be used any more")

    # ---- term and vote -------------------------------------------------------------------------------------

    def set_term(self, term: int, voted_for: int | None) -> None:
        """Durable before it returns.  A term never goes back and a vote within a term never changes."""
        vote = NO_VOTE if voted_for is None else voted_for
        if (term, vote) == (self._term, self._vote):
            return
        if term < self._term or (term == self._term and self._vote != NO_VOTE):
            raise RaftFatal(f"term {term} with vote {vote} after term {self._term} with vote {self._vote}")
        self._require_usable()
        self.sync()
        try:
            faults.point("raft.vote.before_write", term=term)
            self._disk.write_atomic(self._vote_path, self._encode_vote(term, vote))
        except OSError:
            self._failed = True
            raise
        self._term, self._vote = term, vote

    @property
    def term(self) -> int:
        return self._term

    @property
    def voted_for(self) -> int | None:
        return None if self._vote == NO_VOTE else self._vote

    @property
    def cluster_id(self) -> str:
        """The cluster these files belong to; "" until it was named."""
        return self._cluster_id

    def bind_cluster(self, cluster_id: str) -> None:
        """Names the cluster, once: from now on this folder opens for no other."""
        if cluster_id and not self._cluster_id:
            self._cluster_id = cluster_id
            self._disk.write_atomic(self._vote_path, self._encode_vote(self._term, self._vote))

    @property
    def journal_id(self) -> int:
        """Identifies the disk that made this journal's promises: random, made with the folder, never
        changed."""
        return self._id

    @property
    def voting(self) -> bool:
        """Whether this journal may vote, stand and be counted; from False to True once, never back."""
        return self._voting

    @property
    def voter_records(self) -> dict[int, VoterRecord]:
        """Which journal has the vote of each voter, as far as this journal knows."""
        return self._voter_records

    @property
    def is_empty(self) -> bool:
        """Nothing was ever written: no term, no vote, no entry."""
        return (self._term, self._vote, self._entries[-1][1]) == (0, NO_VOTE, FIRST_ENTRY[1])

    def store_voter_records(self, *voter_records: VoterRecord, voting: bool) -> None:
        """Stores voter records, and with `voting` this journal's own vote.  First makes everything added
        before durable, then this, then returns: a journal must not have a vote while it could still lose the
        entries for which it got it."""
        self._require_usable()
        self.sync()
        self._voter_records |= {record.voter: record for record in voter_records}
        self._voting = self._voting or voting
        try:
            faults.point("raft.voter_records.before_write", voting=voting)
            self._disk.write_atomic(self._vote_path, self._encode_vote(self._term, self._vote))
        except OSError:
            self._failed = True
            raise

    def _encode_vote(self, term: int, vote: int) -> bytes:
        name = self._cluster_id.encode()
        body = _VOTE.pack(_VOTE_MAGIC, _VOTE_FORMAT, self._node_id, term, vote, len(name)) + name
        body += _IDENTITY.pack(self._id, self._voting, len(self._voter_records))
        body += b"".join(_VOTER_RECORD.pack(*record) for _, record in sorted(self._voter_records.items()))
        return _CRC.pack(zlib.crc32(body)) + body


def _encode_record(entry: Entry, durable_index: int) -> bytes:
    command, index, term = entry
    body = _BODY.pack(index, term, durable_index) + command
    return _HEAD.pack(len(body), zlib.crc32(body)) + body


def _decode_record(data: bytes, position: int) -> tuple[Entry, int, int] | None:
    """(entry, its durable index, bytes of the record); None when there is no whole valid record here."""
    if position + _HEAD.size + _BODY.size > len(data):
        return None
    length, crc = _HEAD.unpack_from(data, position)
    start = position + _HEAD.size
    if not _BODY.size <= length <= min(len(data) - start, _COMMAND_BYTES_MAX):
        return None
    body = data[start : start + length]
    if zlib.crc32(body) != crc:
        return None
    index, term, durable_index = _BODY.unpack_from(body)
    return (body[_BODY.size :], index, term), durable_index, _HEAD.size + length


def _find_proof_of_damage(data: bytes, damaged: int, expected_index: int, last_term: int) -> int | None:
    """The position of a valid later record which says that entry `expected_index` was durable; None for an
    honest torn tail.  A record of an older term than the last entry's (`last_term`) proves nothing: it
    remains of a tail whose truncation the disk has lost, after a sync that failed."""
    index_at = _HEAD.size
    for position in range(damaged + 1, len(data) - _HEAD.size - _BODY.size + 1):
        (index,) = struct.unpack_from("<Q", data, position + index_at)
        if not expected_index < index < expected_index + _INDEX_SPAN_MAX:
            continue  # cheap filter before the checksum
        record = _decode_record(data, position)
        if record is not None and record[1] >= expected_index and record[0][2] >= last_term:
            return position
    return None
