"""The findings of `tidegate log verify`: every kind with its severity, its meaning and the action to take.
Pure.

A *violation* breaks a promise of the log: data, or a derived file that the node would trust, is wrong.  A
*note* needs no action: an unclean stop leaves it behind, or the next start repairs it.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import NamedTuple


class Severity(Enum):
    VIOLATION = "violation"
    NOTE = "note"


class FindingKind(NamedTuple):
    """One kind of finding."""

    severity: Severity
    meaning: str
    action: str


@dataclass(slots=True, frozen=True)
class Finding:
    """`position` is a byte of `file`, `offset` one of the log; -1 where there is none."""

    kind: str
    file: Path
    detail: str
    position: int = -1
    offset: int = -1

    @property
    def severity(self) -> Severity:
        return KINDS[self.kind].severity

    @property
    def meaning(self) -> str:
        return KINDS[self.kind].meaning

    @property
    def action(self) -> str:
        return KINDS[self.kind].action

    @property
    def place(self) -> tuple[str, Path, int, int]:
        """What two looks at a folder that is being written must agree on."""
        return self.kind, self.file, self.position, self.offset


_IDENTITY = (
    "nothing, with another replica: it is set aside and fetched again; or else copy the file from "
    "another partition of this topic"
)
_REFETCH = (
    "with another replica: move the partition's folder away and start the node, and it is fetched "
    "again from its leader; "
    'without: keep the folder, and see "A damaged log without a good replica" in docs/operations.md'
)
_REBUILT = "stop the node, remove this file, start the node: it is built again from the batches"
_REPORT = "keep a copy of the folder and report it: this is a fault of the software, or of the disk"
_ON_START = "nothing: the next start of the node sees to it"


def _violation(meaning: str, action: str) -> FindingKind:
    return FindingKind(Severity.VIOLATION, meaning, action)


def _note(meaning: str, action: str = _ON_START) -> FindingKind:
    return FindingKind(Severity.NOTE, meaning, action)


KINDS: dict[str, FindingKind] = {
    # ---- batches -------------------------------------------------------------------------------------------
    "batch-damaged": _violation("bytes that had been flushed are no valid batch", _REFETCH),
    "torn-tail": _note(
        "the log ends in bytes that no flush had vouched for: what an unclean stop leaves; they are cut"
    ),
    "offset-gap": _violation(
        "offsets are missing in a log that is not compacted: records are lost", _REFETCH
    ),
    "offset-order": _violation("a batch begins at or below an offset that stands before it", _REFETCH),
    "segment-name": _violation(
        "a segment's name is not the offset of its first batch: look-ups go wrong", _REFETCH
    ),
    "segment-overlap": _violation("a segment begins below the end of the one before it", _REFETCH),
    "segment-gap": _violation(
        "offsets between two segments are missing: a segment was lost or cut", _REFETCH
    ),
    "segment-short": _violation("a segment lost batches at its end that had been flushed", _REFETCH),
    "epoch-order": _violation("a batch has an older leader epoch than one before it", _REPORT),
    "unreadable": _violation(
        "the operating system refused to read a file", "look at the disk and at the rights of the file"
    ),
    # ---- indexes -------------------------------------------------------------------------------------------
    "index-missing": _note(
        "an index of a complete segment is not there; it is built again when it is needed"
    ),
    "seal-damaged": _violation(
        "what vouches for the indexes cannot be read: they are built again", _ON_START
    ),
    "seal-wrong": _violation(
        "what vouches for the indexes is that of others: they are built again", _ON_START
    ),
    "offset-index-damaged": _violation("the offset index is not sane", _REBUILT),
    "offset-index-wrong": _violation(
        "an entry of the offset index points at no batch, or at another one", _REBUILT
    ),
    "time-index-damaged": _violation("the time index is not sane", _REBUILT),
    "time-index-wrong": _violation(
        "the time index does not say what the batches say: look-ups by time go wrong", _REBUILT
    ),
    "count-index-damaged": _violation(
        "the index of record counts is not sane; counts are built again when asked for", _REBUILT
    ),
    "count-index-wrong": _violation(
        "the index of record counts does not say what the batches say: counts are wrong", _REBUILT
    ),
    "transaction-index-damaged": _violation(
        "the index of aborted transactions is not sane: read_committed readers could see aborted records",
        _REBUILT,
    ),
    "transaction-index-wrong": _violation(
        "the index of aborted transactions is not what the markers say: read_committed readers could "
        "see aborted records, or "
        "miss committed ones",
        _REBUILT,
    ),
    # ---- producers -----------------------------------------------------------------------------------------
    "snapshot-damaged": _violation(
        "a producer snapshot cannot be read; an older one and a longer replay take its place", _ON_START
    ),
    "snapshot-unread": _note(
        "a producer snapshot has a version that this release does not read: an older one and a longer replay "
        "take its place, and a log without an older one does not open",
        "nothing, or start the release that wrote it",
    ),
    "snapshot-wrong": _violation(
        "a producer snapshot is not what a replay of the batches gives: duplicates could be "
        "accepted, or good batches refused",
        _REBUILT,
    ),
    "snapshot-beyond-end": _violation(
        "a producer snapshot describes batches that are not in the log", _REFETCH
    ),
    "sequence-gap": _violation(
        "batches of an idempotent producer do not follow on each other: one is lost or came twice", _REPORT
    ),
    "producer-epoch-order": _violation("a fenced instance of a producer has written", _REPORT),
    "transaction-interrupted": _violation(
        "a producer wrote outside of a transaction while it had one open here", _REPORT
    ),
    "transaction-merged": _violation(
        "a producer's next transaction began before the marker of the last one", _REPORT
    ),
    "marker-damaged": _violation("a control batch holds no readable marker", _REPORT),
    "marker-epoch": _violation(
        "a marker of an older producer epoch than that of the transaction it ends", _REPORT
    ),
    "marker-coordinator-epoch": _violation(
        "a marker of an older coordinator than one that has already spoken", _REPORT
    ),
    "marker-alone": _note(
        "markers that end no transaction of this partition: repeated markers, and transactions that "
        "wrote nothing here",
        "nothing",
    ),
    "transaction-open": _note(
        "a transaction is open for longer than any may be: read_committed readers wait at its first offset",
        "`tidegate txns describe`; start the nodes that hold its coordinator",
    ),
    # ---- histories -----------------------------------------------------------------------------------------
    "epoch-history-damaged": _violation("the leader-epoch history cannot be read", _ON_START),
    "epoch-history-wrong": _violation(
        "the leader-epoch history is not what the batches say: replicas could be cut at the wrong place",
        _REFETCH,
    ),
    # ---- leftovers -----------------------------------------------------------------------------------------
    "leftover": _note("a file or folder that an interrupted replacement, deletion or write left behind"),
    "set-aside": _note(
        "a damaged log that the node keeps for an inspection", "remove it when it is not needed any more"
    ),
    "future-replica": _note(
        "a copy of a log on its way to this data folder: it is not the log yet", "nothing: the node goes on"
    ),
    "displaced-replica": _note("a log that has moved to another data folder of the node"),
    "move-word-damaged": _violation(
        "what a log is, while it moves between two data folders, cannot be read: it is not used, nor "
        "is the other one",
        "find out which of the two is newer, move the other one away, and remove the file `replica-move`",
    ),
    "swap-damaged": _violation(
        "the cleaner's decision about segments cannot be read: the log will not open", _REFETCH
    ),
    "known-damaged": _violation("the node found this log damaged earlier and does not use it", _REFETCH),
    "stray-file": _note("a file that no log has", "find out which program put it there"),
    # ---- checkpoints ---------------------------------------------------------------------------------------
    "checkpoint-damaged": _violation(
        "the notes about all partitions cannot be read: every log is scanned in full", _ON_START
    ),
    "recovery-point-beyond-end": _violation(
        "flushed data is gone: the log ends before its recovery point", _REFETCH
    ),
    "high-watermark-beyond-end": _violation(
        "committed data is gone: the log ends before the high watermark", _REFETCH
    ),
    "high-watermark-lost": _note(
        "the log ends before the high watermark it had; the rest is fetched from other replicas"
    ),
    "log-start-damaged": _note(
        "the log start beside the log cannot be read: the data folder's checkpoint has it, too"
    ),
    "log-start-beyond-end": _violation(
        "the log start is above the log's end or its high watermark", _REFETCH
    ),
    "log-start-missing": _violation(
        "the log begins above its log start: its first segments are gone", _REFETCH
    ),
    "clean-end-differs": _violation("the log does not end where a clean stop noted its end", _REFETCH),
    "partition-missing": _violation(
        "the notes name a partition whose folder is not there",
        "if it was moved away on purpose, nothing; else look for it: its data had been flushed",
    ),
    "partition-unnoted": _note("a clean stop left no note about this partition; it is scanned in full"),
    # ---- the folder ----------------------------------------------------------------------------------------
    "clean-mark-damaged": _violation(
        "the mark of a clean stop cannot be read; the start counts as one after an unclean stop", _ON_START
    ),
    "clean-mark-while-running": _violation(
        "a node uses the folder and the mark of a clean stop is still there", _REPORT
    ),
    "identity-missing": _violation(
        "a folder with partitions has no meta.properties: nodes refuse it",
        "find out whose it is, and restore the file",
    ),
    "identity-damaged": _violation(
        "meta.properties is damaged: nodes refuse the folder",
        "when the folder is that node's for certain, correct the lines and remove the last one, crc32c=",
    ),
    "identity-differs": _violation(
        "two data folders belong to different clusters or nodes",
        "check the volumes: one is in the wrong place",
    ),
    "directory-id-twice": _violation(
        "two data folders have one directory.id: one is a copy", "use only one of them"
    ),
    "topic-id-missing": _violation(
        "a partition that was in use has no partition.metadata: the log will not open", _IDENTITY
    ),
    "topic-id-damaged": _violation("partition.metadata cannot be read: the log will not open", _IDENTITY),
    "topic-id-differs": _violation(
        "partitions of one topic carry different topic ids: some are of an earlier topic of that name",
        "start the node: it removes the partitions of the topic that is gone",
    ),
    "topic-id-shared": _violation(
        "two topics carry one topic id: a folder was copied or renamed by hand", "undo that"
    ),
    "partition-twice": _violation(
        "one partition stands in two data folders", "find the newer one, and move the other away"
    ),
    "config-damaged": _violation(
        "the log's configuration cannot be read: the defaults hold, and a compacted log would be "
        "taken for one with lost data",
        "copy the folder away before the node starts",
    ),
    "cleaner-notes-damaged": _violation(
        "what was cleaned so far cannot be read: everything is cleaned again", _ON_START
    ),
}
