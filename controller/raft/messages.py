"""The messages between quorum members, and their fixed binary form.

A frame is one message: a type byte, then little-endian fields.  `decode` accepts exactly what `encode` makes:
an unknown type, a short or a long frame, a length that points outside raises `MalformedMessage`, and such a
frame never reaches Raft. No pickle, no self-describing format: a frame cannot run code.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import NamedTuple

FRAME_BYTES_MAX = 8 << 20
HELLO_VERSION = 2
NUMBER_MAX = 2**62  # of terms and indexes; they stand in 64-bit integers with a sign elsewhere
_NAME_BYTES_MAX = 255

Entry = tuple[bytes, int, int]  # (command, index, term): the shape that PySyncObj's log has
REGULAR, NO_OP = b"\x00", b"\x01"  # the first byte of every command, PySyncObj's own


class VoterRecord(NamedTuple):
    """Which journal has the vote of a voter, since the entry `since`; 0: since the formation."""

    voter: int
    journal: int
    since: int


class MalformedMessage(ValueError):
    """Bytes that are no message; the connection they came from is closed and the error counted."""


@dataclass(slots=True, frozen=True)
class Hello:
    """The first frame in both directions: the sender's node id, voters, and cluster id ("" when it has none
    yet)."""

    node_id: int
    cluster_id: str
    voters: tuple[int, ...]


@dataclass(slots=True, frozen=True)
class Ping:
    """Keeps a silent connection alive; answered by the other side's own pings."""


@dataclass(slots=True, frozen=True)
class VoterStatus:
    """First on every connection, and after every change: the sender's journal, and whether that has a vote
    (`membership`)."""

    journal: int  # never 0
    voting: bool
    empty: bool  # no term, no vote, no entry yet
    # voting: the voter records that it knows; else: the formation that it would agree to, or nothing
    roster: tuple[VoterRecord, ...]


@dataclass(slots=True, frozen=True)
class AppendEntries:
    """Leader to follower.  Without entries: the heartbeat, and the probe for where the logs agree."""

    term: int
    commit_index: int
    previous_index: int
    previous_term: int
    entries: tuple[Entry, ...]


@dataclass(slots=True, frozen=True)
class AppendReply:
    """Follower to leader, only after everything it confirms is durable.

    success: every entry up to `next_index - 1` agrees with the leader's and is on disk.  Otherwise: the frame
    whose `previous_index` this was did not fit; try again from `next_index`.

    voting: whether `journal` has a vote.  Without a vote the answer only says where to go on sending, and
    does not count.
    """

    term: int
    success: bool
    next_index: int
    previous_index: int
    journal: int
    voting: bool


@dataclass(slots=True, frozen=True)
class VoteRequest:
    term: int
    last_index: int
    last_term: int
    preliminary: bool  # PreVote: asks without raising a term


@dataclass(slots=True, frozen=True)
class VoteReply:
    """`term`: the requested term when granted, else the voter's own term."""

    term: int
    granted: bool
    preliminary: bool


@dataclass(slots=True, frozen=True)
class SnapshotChunk:
    """A piece of the leader's snapshot file; `checksum` and `total_bytes` name which file."""

    term: int
    commit_index: int
    checksum: int
    total_bytes: int
    position: int
    data: bytes


@dataclass(slots=True, frozen=True)
class SnapshotReply:
    """The follower holds `received_bytes` of the named file (0: begin again); all of it means installed and
    durable."""

    term: int
    checksum: int
    received_bytes: int
    last_index: int  # of the follower's log after the installation; 0 while it is incomplete
    journal: int
    voting: bool


Message = VoterStatus | AppendEntries | AppendReply | VoteRequest | VoteReply | SnapshotChunk | SnapshotReply
Frame = Hello | Ping | Message

_HELLO = struct.Struct("<BBiBB")
_STATUS = struct.Struct("<BQBBB")
_VOTER_RECORD = struct.Struct("<iQQ")
_APPEND = struct.Struct("<BQQQQI")
_ENTRY = struct.Struct("<QQI")
_APPEND_REPLY = struct.Struct("<BQBQQQB")
_VOTE_REQUEST = struct.Struct("<BQQQB")
_VOTE_REPLY = struct.Struct("<BQBB")
_CHUNK = struct.Struct("<BQQIQQ")
_CHUNK_REPLY = struct.Struct("<BQIQQQB")

_TYPE_HELLO, _TYPE_PING, _TYPE_APPEND, _TYPE_APPEND_REPLY = 1, 2, 3, 4
_TYPE_VOTE_REQUEST, _TYPE_VOTE_REPLY, _TYPE_CHUNK, _TYPE_CHUNK_REPLY = 5, 6, 7, 8
_TYPE_STATUS = 9
_VOTERS_MAX = 9


def encode(frame: Frame) -> bytes:
    match frame:
        case AppendEntries(term, commit_index, previous_index, previous_term, entries):
            parts = [
                _APPEND.pack(_TYPE_APPEND, term, commit_index, previous_index, previous_term, len(entries))
            ]
            for command, index, entry_term in entries:
                parts.append(_ENTRY.pack(index, entry_term, len(command)))
                parts.append(command)
            return b"".join(parts)
        case AppendReply(term, success, next_index, previous_index, journal, voting):
            return _APPEND_REPLY.pack(
                _TYPE_APPEND_REPLY, term, success, next_index, previous_index, journal, voting
            )
        case VoteRequest(term, last_index, last_term, preliminary):
            return _VOTE_REQUEST.pack(_TYPE_VOTE_REQUEST, term, last_index, last_term, preliminary)
        case VoteReply(term, granted, preliminary):
            return _VOTE_REPLY.pack(_TYPE_VOTE_REPLY, term, granted, preliminary)
        case SnapshotChunk(term, commit_index, checksum, total_bytes, position, data):
            return _CHUNK.pack(_TYPE_CHUNK, term, commit_index, checksum, total_bytes, position) + data
        case SnapshotReply(term, checksum, received_bytes, last_index, journal, voting):
            return _CHUNK_REPLY.pack(
                _TYPE_CHUNK_REPLY, term, checksum, received_bytes, last_index, journal, voting
            )
        case VoterStatus(journal, voting, empty, roster):
            head = _STATUS.pack(_TYPE_STATUS, journal, voting, empty, len(roster))
            return head + b"".join(_VOTER_RECORD.pack(*record) for record in roster)
        case Hello(node_id, cluster_id, voters):
            name = cluster_id.encode()
            if len(name) > _NAME_BYTES_MAX or len(voters) > _VOTERS_MAX:
                raise MalformedMessage(
                    f"a cluster id has at most {_NAME_BYTES_MAX} bytes, a quorum {_VOTERS_MAX} voters"
                )
            head = _HELLO.pack(_TYPE_HELLO, HELLO_VERSION, node_id, len(voters), len(name))
            return head + struct.pack(f"<{len(voters)}i", *voters) + name
        case Ping():
            return bytes((_TYPE_PING,))


def decode(data: bytes) -> Frame:
    """Raises MalformedMessage for everything that `encode` would not have made."""
    if not data:
        raise MalformedMessage("an empty frame")
    try:
        return _decode(data)
    except (struct.error, UnicodeDecodeError) as error:
        raise MalformedMessage(
            f"a frame of type {data[0]} and {len(data)} bytes does not fit its schema: {error}"
        ) from error


def _decode(data: bytes) -> Frame:
    match data[0]:
        case 3:
            return _decode_append(data)
        case 4:
            _, term, success, next_index, previous_index, journal, voting = _APPEND_REPLY.unpack(data)
            _check_numbers(term, next_index, previous_index)
            return AppendReply(
                term, _boolean(success), next_index, previous_index, _journal(journal), _boolean(voting)
            )
        case 5:
            _, term, last_index, last_term, preliminary = _VOTE_REQUEST.unpack(data)
            _check_numbers(term, last_index, last_term)
            return VoteRequest(term, last_index, last_term, _boolean(preliminary))
        case 6:
            _, term, granted, preliminary = _VOTE_REPLY.unpack(data)
            _check_numbers(term)
            return VoteReply(term, _boolean(granted), _boolean(preliminary))
        case 7:
            _, term, commit_index, checksum, total_bytes, position = _CHUNK.unpack_from(data)
            _check_numbers(term, commit_index)
            chunk = data[_CHUNK.size :]
            if not chunk or position + len(chunk) > total_bytes:
                raise MalformedMessage("a snapshot chunk is empty or reaches past the end of its file")
            return SnapshotChunk(term, commit_index, checksum, total_bytes, position, chunk)
        case 8:
            _, term, checksum, received_bytes, last_index, journal, voting = _CHUNK_REPLY.unpack(data)
            _check_numbers(term, last_index)
            return SnapshotReply(
                term, checksum, received_bytes, last_index, _journal(journal), _boolean(voting)
            )
        case 9:
            return _decode_voter_status(data)
        case 2:
            if len(data) != 1:
                raise MalformedMessage("a ping has no content")
            return Ping()
        case 1:
            return _decode_hello(data)
        case unknown:
            raise MalformedMessage(f"unknown frame type {unknown}")


def _decode_append(data: bytes) -> AppendEntries:
    _, term, commit_index, previous_index, previous_term, count = _APPEND.unpack_from(data)
    _check_numbers(term, commit_index, previous_index, previous_term)
    position = _APPEND.size
    if count > (len(data) - position) // _ENTRY.size:
        raise MalformedMessage(f"{count} entries cannot be in a frame of {len(data)} bytes")
    entries: list[Entry] = []
    for number in range(count):
        index, entry_term, length = _ENTRY.unpack_from(data, position)
        position += _ENTRY.size
        if length == 0 or length > len(data) - position:
            raise MalformedMessage(f"entry {number} is empty or reaches past the end of its frame")
        if index != previous_index + 1 + number or not 0 < entry_term <= term:
            raise MalformedMessage(
                f"entry {number} has index {index} and term {entry_term} after index {previous_index}"
            )
        entries.append((data[position : position + length], index, entry_term))
        position += length
    if position != len(data):
        raise MalformedMessage(f"{len(data) - position} bytes after the last entry")
    return AppendEntries(term, commit_index, previous_index, previous_term, tuple(entries))


def _decode_voter_status(data: bytes) -> VoterStatus:
    _, journal, voting, empty, count = _STATUS.unpack_from(data)
    if count > _VOTERS_MAX or len(data) != _STATUS.size + count * _VOTER_RECORD.size:
        raise MalformedMessage("a voter status of the wrong length")
    roster = tuple(
        VoterRecord(voter, _journal(its_journal), since)
        for voter, its_journal, since in _VOTER_RECORD.iter_unpack(data[_STATUS.size :])
    )
    _check_numbers(0, *(record.since for record in roster))
    if len({record.voter for record in roster}) != count:
        raise MalformedMessage("a voter has two voter records")
    return VoterStatus(_journal(journal), _boolean(voting), _boolean(empty), roster)


def _decode_hello(data: bytes) -> Hello:
    _, version, node_id, voter_count, name_length = _HELLO.unpack_from(data)
    if version != HELLO_VERSION:
        raise MalformedMessage(
            f"a peer speaks version {version} of the quorum protocol, this node speaks {HELLO_VERSION}"
        )
    if voter_count > _VOTERS_MAX or len(data) != _HELLO.size + 4 * voter_count + name_length:
        raise MalformedMessage("a hello of the wrong length")
    voters = struct.unpack_from(f"<{voter_count}i", data, _HELLO.size)
    return Hello(node_id, data[len(data) - name_length :].decode(), voters)


def _check_numbers(*numbers: int) -> None:
    if max(numbers) > NUMBER_MAX:
        raise MalformedMessage(f"no term and no index is {max(numbers)}")


def _journal(value: int) -> int:
    if value == 0:
        raise MalformedMessage("no journal has the id 0")
    return value


def _boolean(value: int) -> bool:
    if value > 1:
        raise MalformedMessage(f"{value} is not a boolean")
    return bool(value)
