"""Each field of each durable file is held by a check of the simulated histories, or has a reason why none
needs to: what no check sees may be lost or wrong after a crash, and no history breaks."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from random import Random
from typing import Any, NamedTuple

from tidegate.chaos.sim.storage import checks
from tidegate.chaos.sim.storage.cleaning_checks import adopt_cleaned
from tidegate.chaos.sim.storage.count_checks import check_counts
from tidegate.chaos.sim.storage.folders_history import FoldersHistory
from tidegate.chaos.sim.storage.log_history import StorageHistory
from tidegate.chaos.sim.storage.moves_history import MovesHistory
from tidegate.chaos.sim.storage.rot_history import RotHistory
from tidegate.storage.cleaning.positions import CleanerPosition
from tidegate.storage.directory.folder_notes import PartitionCheckpoint
from tidegate.storage.producers.producer_state import BatchMetadata, ProducerEntry
from tidegate.storage.segment.checksums import SegmentChecksums
from tidegate.storage.segment.count_index import CountEntry, Run
from tidegate.storage.segment.transaction_index import TransactionIndexEntry

from .test_formats import FILES, versions_of


class Held(NamedTuple):
    """By a check of the histories, or by all histories of a kind; a text is the reason why none is needed."""

    file: str
    of: type | None
    """None: the file has no class of its own, and the fields stand in its docstring alone."""
    fields: str
    check: Callable[..., object] | str


PRODUCERS, TRANSACTIONS = checks._check_producers, checks._check_transactions
HELD = [
    Held(".snapshot", ProducerEntry, "producer_id epoch coordinator_epoch last_timestamp_ms", PRODUCERS),
    Held(".snapshot", ProducerEntry, "transaction_first_offset batches", PRODUCERS),
    Held(".snapshot", BatchMetadata, "last_sequence last_offset offset_delta timestamp_ms", PRODUCERS),
    Held(".snapshot", None, "unreplicated", TRANSACTIONS),
    Held(".txnindex", TransactionIndexEntry, "producer_id first_offset last_offset", TRANSACTIONS),
    Held(".txnindex", TransactionIndexEntry, "last_stable_offset", TRANSACTIONS),
    Held(".countindex", Run, "producer_id first last records", check_counts),
    Held(".countindex", CountEntry, "offset position records", check_counts),
    Held(".index", None, "offset position", checks._check_indexes),
    Held(".timeindex", None, "timestamp offset", checks._check_times),
    Held(".seal", SegmentChecksums, "base_offset end_offset log_bytes", RotHistory),
    Held(".seal", SegmentChecksums, "index_bytes index_crc time_index_bytes time_index_crc", RotHistory),
    Held(".seal", SegmentChecksums, "aborted aborted_crc", RotHistory),
    Held(".swap", None, "state name", adopt_cleaned),
    Held("partition-checkpoint", PartitionCheckpoint, "recovery_point", PRODUCERS),
    Held("partition-checkpoint", PartitionCheckpoint, "high_watermark", TRANSACTIONS),
    Held("partition-checkpoint", PartitionCheckpoint, "log_start_offset", checks.check_survivors),
    Held("leader-epoch-checkpoint", None, "epoch start_offset", checks._check_epoch_history),
    Held(
        "cleaner-offset-checkpoint", CleanerPosition, "offset epoch horizon_ms",
        "a note only: at worst the log is cleaned once more, or later",
    ),
    Held("log-start", None, "offset", checks.check_survivors),
    Held("flush-notes", None, "identity end", checks.check_survivors),
    Held("partition.metadata", None, "topic_id", FoldersHistory),
    Held("data-folders", None, "kind id", FoldersHistory),
    Held("replica-move", None, "state", MovesHistory),
    Held(
        "log-config", None, "setting value",
        "no promise but `was_compacted`, which `StorageHistory.reconfigure` sets: `test_pure_parts.py`",
    ),
    Held("clean-shutdown", None, "broker_epoch", "the controller's proof: `test_log_directory.py`"),
    Held("meta.properties", None, "names", "refused before a log is opened: `test_folder_owner.py`"),
    Held("set-aside", None, "since topic partition", "of a log that is in use no more: `test_set_aside.py`"),
]  # fmt: skip


def known_fields(of: Any) -> list[str]:
    return list(getattr(of, "_fields", ())) or [each.name for each in dataclasses.fields(of) if each.init]


def test_every_field_of_a_durable_file_is_held_by_a_history_or_has_a_reason() -> None:
    """A new field: what it promises stands in chaos/sim/storage/model.py, its check here."""
    versions = {name.lstrip("0123456789"): versions_of(each.constant) for name, each in FILES.items()}
    assert {each.file for each in HELD} == versions.keys()
    for file, of in {(each.file, each.of) for each in HELD}:
        listed = [name for each in HELD if (each.file, each.of) == (file, of) for name in each.fields.split()]
        columns = list(versions[file].reads.values())[-1]
        if of is not None:
            known = known_fields(of)
            assert sorted(listed) == sorted(known), f"HELD is to say what holds each field of {of.__name__}"
        elif isinstance(columns, int):
            assert len(listed) == columns, f"HELD is to say what holds each column of {file}"


def other(value: Any) -> Any:
    return 3 if value is None else value + 1


def test_another_value_of_each_field_of_a_producer_is_seen() -> None:
    """Seed 4 leaves producers with and without a batch, an open transaction, and a marker."""
    (history := StorageHistory(4)).run()
    log, model = history.log, history.model

    def is_seen() -> bool:
        try:
            checks.check_log(log, model, history.config, Random(0))
        except AssertionError:
            return True
        return False

    assert not is_seen()
    assert not model.cleaned_to
    entry = next(each for each in log.producers.entries() if each.transaction_first_offset and each.batches)
    for name in (each.name for each in dataclasses.fields(entry) if each.init):
        value = getattr(entry, name)
        setattr(entry, name, () if name == "batches" else other(value))
        assert is_seen(), (
            f"ProducerEntry.{name}: `ModelProducer` is to have it, and `_check_producers` to compare"
        )
        setattr(entry, name, value)
    batch = entry.batches[-1]
    for name in BatchMetadata._fields:
        entry.batches = (*entry.batches[:-1], batch._replace(**{name: other(getattr(batch, name))}))
        assert is_seen(), f"BatchMetadata.{name}"
    entry.batches = (*entry.batches[:-1], batch)
    assert not is_seen()
