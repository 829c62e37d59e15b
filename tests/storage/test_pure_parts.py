"""Topic configuration, epoch history, indexes and checkpoint files: pure parts against tables and plain
models."""

from __future__ import annotations

import ast
import inspect
import re
import sys
from dataclasses import fields, replace
from enum import Enum
from pathlib import Path
from typing import Any

import pytest
import tidegate
from crc32c import crc32c
from hypothesis import given
from hypothesis import strategies as st
from tidegate.controller.state.model import TopicState
from tidegate.replication.partition.assignment import Assignment
from tidegate.replication.replica.replica import Replica
from tidegate.storage.checkpoint import (
    CheckpointInvalid,
    RowShapes,
    decode_checkpoint,
    encode_checkpoint,
    encode_value,
    parse_value,
)
from tidegate.storage.directory.folder_notes import PartitionCheckpoint
from tidegate.storage.directory.stored_config import decode_config, encode_config
from tidegate.storage.epoch_cache import EpochCache
from tidegate.storage.log.log import FlushPolicy, LogConfig
from tidegate.storage.segment.checksums import ChecksumsInvalid, checksums_of, decode_checksums
from tidegate.storage.segment.offset_index import OffsetIndex
from tidegate.storage.segment.time_index import TimeIndex
from tidegate.storage.segment.transaction_index import TransactionIndexEntry, decode_transaction_index
from tidegate.storage.topic_config import (
    TOPIC_CONFIGS,
    CleanupPolicy,
    ConfigKey,
    ConfigType,
    parsed_topic_config,
    unread_settings,
)
from tidegate.wire.errors import ErrorCode, KafkaError

# ---- topic configuration -----------------------------------------------------------------------------------


def test_every_default_is_valid_and_makes_a_log_configuration() -> None:
    defaults = {name: row.default for name, row in TOPIC_CONFIGS.items()}
    parsed_topic_config(defaults)
    assert LogConfig.from_topic_config(defaults) == LogConfig.from_topic_config({}) == LogConfig()


@pytest.mark.parametrize(
    ("key", "value", "says"),
    [
        ("retention.mss", "1", "did you mean 'retention.ms'?"),
        ("min.insync.replica", "1", "did you mean 'min.insync.replicas'?"),
        ("flush.policy", "alwys", "did you mean 'always'?"),
        ("nonsense", "1", "Unknown topic config name: nonsense"),
        (
            "segment.bytes",
            "many",
            "Invalid value many for configuration segment.bytes: Not a number of type INT",
        ),
        ("segment.bytes", "1", "Value must be at least 1024"),
        ("segment.bytes", str(2**31), "Value must be no more than 2147483647"),
        ("min.cleanable.dirty.ratio", "1.5", "Value must be no more than 1"),
        ("cleanup.policy", "delete,shred", "one of delete, compact"),
        ("remote.storage.enable", "true", "tiered storage is not there"),
        ("leader.replication.throttled.replicas", "0:1,2", "list of partition:broker"),
        ("cleanup.policy", "", None),
        ("unclean.leader.election.enable", "yes", "true or false"),
        ("compression.type", "zstdd", "did you mean 'zstd'?"),
        ("min.compaction.lag.ms", str(2**63 - 1), None),
        ("max.compaction.lag.ms", "1", None),
    ],
)
def test_a_wrong_configuration_is_refused_and_says_what_to_do(key: str, value: str, says: str | None) -> None:
    if says is None:
        parsed_topic_config({key: value})
        return
    with pytest.raises(KafkaError) as caught:
        parsed_topic_config({key: value})
    assert caught.value.code == ErrorCode.INVALID_CONFIG
    assert says in caught.value.message


@pytest.mark.parametrize(
    ("written", "field", "value"),
    [
        ({"retention.parsecs": "12"}, "retention_ms", LogConfig().retention_ms),
        ({"cleanup.policy": "compact,shred"}, "cleanup_policy", {CleanupPolicy.COMPACT}),
        ({"cleanup.policy": "shred"}, "cleanup_policy", set()),
        ({"retention.ms": "forever"}, "retention_ms", -1),
        ({"retention.bytes": "10%"}, "retention_bytes", -1),
        ({"delete.retention.ms": "7d"}, "delete_retention_ms", 2**63 - 1),
        ({"min.compaction.lag.ms": "1h"}, "min_compaction_lag_ms", 2**63 - 1),
        ({"flush.policy": "battery"}, "flush_policy", FlushPolicy.ALWAYS),
        ({"segment.bytes": "1"}, "segment_bytes", LogConfig().segment_bytes),
        ({"segment.ms": "5", "x": "y"}, "segment_ms", 5),
    ],
)
def test_what_a_later_version_wrote_has_no_effect_and_removes_nothing(
    written: dict[str, str], field: str, value: object
) -> None:
    config = LogConfig.from_topic_config(written)
    assert getattr(config, field) == value
    assert decode_config(encode_config(config)) == config
    assert unread_settings(written) == [name for name, text in written.items() if text != "5"]


def test_a_change_is_checked_and_what_stands_beside_it_is_not() -> None:
    beside = {"retention.parsecs": "12", "cleanup.policy": "shred,compact", "max.compaction.lag.ms": "5"}
    parsed_topic_config({"segment.ms": "5"}, over=beside | {"segment.ms": "5"})
    with pytest.raises(KafkaError, match="must not be above"):
        parsed_topic_config({"min.compaction.lag.ms": "6"}, over=beside | {"min.compaction.lag.ms": "6"})


def test_a_configuration_reaches_the_log() -> None:
    config = LogConfig.from_topic_config(
        {"cleanup.policy": "compact, delete", "flush.policy": "os", "segment.ms": "5"}
    )
    assert config.cleanup_policy == {CleanupPolicy.COMPACT, CleanupPolicy.DELETE}
    assert (config.flush_policy, config.segment_ms, config.is_compacted) == (FlushPolicy.OS, 5, True)


NOT_THE_LOGS: dict[str, tuple[object, ...]] = {
    "file.delete.delay.ms": (),
    "follower.replication.throttled.replicas": (Replica.is_follower_throttled,),
    "leader.replication.throttled.replicas": (Replica.is_leader_throttled,),
    "local.retention.bytes": (),
    "local.retention.ms": (),
    "min.insync.replicas": (Assignment.min_insync_replicas, TopicState.min_in_sync_replicas),
    "preallocate": (),
    "remote.log.copy.disable": (),
    "remote.log.delete.on.disable": (),
    "remote.storage.enable": (),
    "unclean.leader.election.enable": (TopicState.unclean_election_allowed,),
}
"""With what reads them; nothing does when they are only kept and shown."""


@pytest.mark.parametrize("key", NOT_THE_LOGS)
def test_what_is_named_as_the_reader_of_a_setting_reads_it(key: str) -> None:
    for reader in NOT_THE_LOGS[key]:
        function: Any = reader.fget if isinstance(reader, property) else reader
        source, module = inspect.getsource(function), sys.modules[function.__module__]
        names = [name for name, value in vars(module).items() if value == key]
        assert f'"{key}"' in source or any(name in source for name in names)


def test_every_field_of_a_logs_configuration_is_read() -> None:
    read = {
        node.attr
        for path in Path(tidegate.__path__[0]).glob("*/**/*.py")
        if path.parts[len(Path(tidegate.__path__[0]).parts)] in ("storage", "replication", "node")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Attribute)
        and (ast.unparse(node.value).endswith("config") or path.name == "topic_config.py")
    }
    assert [each.name for each in fields(LogConfig) if each.name not in read] == []


def another_value(row: ConfigKey) -> str:
    """A valid value that is not the default."""
    if row.type is ConfigType.BOOLEAN:
        return "false" if row.default == "true" else "true"
    if row.choices:
        return next(choice for choice in row.choices if choice != row.default)
    if row.type is ConfigType.LIST:
        return "*"
    if row.type is ConfigType.DOUBLE:
        return "0.25"
    above = str(int(row.default) + 1)
    try:
        return row.parse(above)
    except ValueError:
        return row.parse(str(int(row.default) - 1))


@pytest.mark.parametrize("key", sorted(TOPIC_CONFIGS))
def test_every_setting_of_a_topic_reaches_its_log_or_says_who_reads_it(key: str) -> None:
    changed = LogConfig.from_topic_config({key: another_value(TOPIC_CONFIGS[key])})
    assert (changed == LogConfig.from_topic_config({})) == (key in NOT_THE_LOGS)
    if key not in NOT_THE_LOGS:
        assert decode_config(encode_config(changed)) == changed


WITHOUT_A_STAND_IN = {
    "index.interval.bytes": "removes nothing",
    "max.compaction.lag.ms": "the default never makes the cleaner hurry",
    "min.cleanable.dirty.ratio": "says when the cleaner comes, not what it removes",
    "segment.bytes": "removes nothing",
}


def test_a_setting_by_which_records_are_removed_has_a_stand_in_for_what_is_not_read() -> None:
    """By what the code that removes records reads of a log's configuration."""
    cleaning = (Path(tidegate.__path__[0]) / "storage" / "cleaning").glob("*.py")
    read = {name for path in cleaning for name in re.findall(r"config\.(\w+)", path.read_text())}
    default = LogConfig()
    for key, row in TOPIC_CONFIGS.items():
        changed = LogConfig.from_topic_config({key: another_value(row)})
        decides = any(getattr(changed, name) != getattr(default, name) for name in read)
        assert decides == (row.unread is not None or key in WITHOUT_A_STAND_IN), key
        assert row.unread is None or row.parse(row.unread) == row.unread


@pytest.mark.parametrize("field", PartitionCheckpoint._fields)
def test_nothing_that_a_checkpoint_notes_leads_a_truncated_log(field: str) -> None:
    below = PartitionCheckpoint(*(5 for _ in PartitionCheckpoint._fields))
    noted = below._replace(**{field: 9})
    assert noted.lowered_to(7) == below._replace(**{field: 7})
    assert noted.leads(7) == (field != "high_watermark")


@pytest.mark.parametrize("name", [each.name for each in fields(LogConfig) if each.init])
def test_every_field_of_a_logs_configuration_is_kept_beside_the_log(name: str) -> None:
    match getattr(LogConfig(), name):
        case bool(value):
            other: Any = not value
        case int() | float() as value:
            other = value + 1
        case Enum() as value:
            other = next(each for each in type(value) if each is not value)
        case frozenset():
            other = frozenset(CleanupPolicy)
        case _:
            other = "zstd"
    changed = replace(LogConfig(), **{name: other})
    assert decode_config(encode_config(changed)) == changed != LogConfig()


# ---- epoch history -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("asked", "answer"),
    [
        (-1, (-1, -1)),
        (0, (0, 0)),
        (1, (1, 0)),
        (2, (2, 10)),
        (3, (2, 10)),
        (4, (2, 10)),
        (5, (5, 25)),
        (6, (6, 40)),
        (7, (-1, -1)),
    ],
)
def test_where_an_epoch_ends(asked: int, answer: tuple[int, int]) -> None:
    cache = EpochCache([(2, 0), (5, 10), (6, 25)])
    assert tuple(cache.end_of(asked, 40)) == answer


def test_an_epoch_that_never_had_data_gives_way() -> None:
    cache = EpochCache([(1, 0), (2, 10)])
    assert cache.assign(3, 10)
    assert cache.entries() == [(1, 0), (3, 10)]
    assert not cache.assign(2, 20)
    assert not cache.assign(3, 30)
    assert cache.entries() == [(1, 0), (3, 10)]


def test_truncation_of_the_history_at_both_ends() -> None:
    cache = EpochCache([(1, 0), (2, 10), (4, 20)])
    assert cache.truncate_from_end(20)
    assert cache.entries() == [(1, 0), (2, 10)]
    assert cache.truncate_from_start(12)
    assert cache.entries() == [(2, 12)]
    assert not cache.truncate_from_start(12)
    assert not cache.truncate_from_end(13)
    assert cache.epoch_at(11) == -1
    assert cache.epoch_at(12) == 2
    assert cache.truncate_from_end(0)
    assert cache.latest == -1


@given(st.lists(st.tuples(st.integers(0, 8), st.integers(1, 5)), max_size=30))
def test_the_history_agrees_with_the_batches(batches: list[tuple[int, int]]) -> None:
    """Written epoch by epoch, every offset's epoch and every epoch's end are those of the batches."""
    cache, end = EpochCache(), 0
    written: list[int] = []
    for epoch, count in sorted(batches):
        cache.assign(epoch, end)
        written += [epoch] * count
        end += count
    for offset, epoch in enumerate(written):
        assert cache.epoch_at(offset) == epoch
        assert tuple(cache.end_of(epoch, end)) == (
            epoch,
            max(i for i, e in enumerate(written) if e == epoch) + 1,
        )


# ---- indexes -----------------------------------------------------------------------------------------------

ENTRIES = st.lists(st.tuples(st.integers(1, 50), st.integers(1, 5000)), max_size=40)


@given(ENTRIES, st.integers(0, 2**40))
def test_an_offset_index_finds_what_a_scan_finds_and_survives_its_file(
    steps: list[tuple[int, int]], base: int
) -> None:
    index, rows = OffsetIndex(base), []
    offset, position = base, 0
    for gap, size in steps:
        index.append(offset, position)
        rows.append((offset, position))
        offset, position = offset + gap, position + size
    again = OffsetIndex.decode(index.encode(), base)
    for probe in range(base, offset + 2, 7):
        assert again.floor(probe) == index.floor(probe) == sum(1 for row in rows if row[0] <= probe) - 1
        assert again.ceiling(probe) == sum(1 for row in rows if row[0] < probe)
    for probe in range(0, position + 2, 99):
        assert again.floor_position(probe) == sum(1 for row in rows if row[1] <= probe) - 1
        assert again.ceiling_position(probe) == sum(1 for row in rows if row[1] < probe)
    assert [again.entry(i) for i in range(len(again))] == rows


READS = st.lists(st.tuples(st.integers(0, 2100), st.integers(0, 60_000), st.integers(0, 2100)), max_size=8)


@given(ENTRIES, READS, st.booleans())
def test_a_stretch_holds_the_asked_batch_and_ends_at_boundaries(
    steps: list[tuple[int, int]], reads: list[tuple[int, int, int]], many: bool
) -> None:
    """Whatever was read before it, and also where a gap comes first: entries, and both ends of the segment,
    are boundaries."""
    base, offset, position = 7, 17, 0
    index, bounds = OffsetIndex(base), []
    for gap, size in steps * (20 if many else 1):
        index.append(offset, position)
        bounds.append((offset, position))
        offset, position = offset + gap, position + size
    end_offset, end = offset, position
    bounds.append((end_offset, end))
    reads = [(base + asked, most, base + upper) for asked, most, upper in reads]
    for asked, most, upper in [*reads, *reads]:
        found = index.stretch(asked, most, upper, end_offset, end)
        if not steps or asked >= end_offset or upper <= 17:
            assert found is None
            continue
        upper = max(upper, asked + 1)
        found = index.stretch(asked, most, upper, end_offset, end)
        assert found is not None
        first, begins_at, start, stop, following, walk_from = found
        last = bounds.index((following, stop))
        assert bounds[first] == (begins_at, start)
        assert first < last
        assert bounds[first + 1][0] > asked
        assert bounds[first][0] <= asked or not first
        assert stop - start <= most or last == first + 1
        tight = last + 1 == len(bounds) or bounds[last + 1][1] - start > most or following >= upper
        assert tight, "it could have been longer"
        if following > upper:
            assert bounds[last - 1][0] < upper
            assert walk_from == bounds[last - 1][1] - start
        else:
            assert walk_from == -1


def test_checksums_match_only_their_files_and_damaged_ones_none() -> None:
    index, times = bytes(range(80)), bytes(range(120))
    checksums = checksums_of(3, 7, 1000, index, times, 3, 5)
    assert decode_checksums(checksums.encode(), 3) == checksums
    assert checksums.vouches_for(index, times)
    for other in (index[:-8], index + bytes(8), b"", bytes([1]) + index[1:]):
        assert not checksums.vouches_for(other, times)
    for other in (times[:-12], b"", times[:-1] + b"x"):
        assert not checksums.vouches_for(index, other)
    for at in range(len(checksums.encode())):
        damaged = bytearray(checksums.encode())
        damaged[at] ^= 4
        with pytest.raises(ChecksumsInvalid):
            decode_checksums(bytes(damaged), 3)
    for at in range(len(checksums.encode()) - 1):  # the last newline alone is not missed
        with pytest.raises(ChecksumsInvalid):
            decode_checksums(checksums.encode()[:at], 3)


@given(st.lists(st.integers(0, 100), max_size=40), st.integers(0, 101))
def test_before_the_last_entry_below_it_every_timestamp_is_smaller(timestamps: list[int], asked: int) -> None:
    index, greatest, at = TimeIndex(5), -1, 5
    for offset, timestamp in enumerate(timestamps, 5):
        if timestamp > greatest:
            greatest, at = timestamp, offset
        index.append(greatest, at)
    again = TimeIndex.decode(index.encode(), 5)
    assert again.last == index.last == (greatest, at)
    _timestamp, start = again.last_below(asked) or (-1, 5)
    assert all(timestamp < asked for timestamp in timestamps[: start - 5])


def test_a_transaction_index_has_34_bytes_an_entry_and_notices_damage() -> None:
    entries = [TransactionIndexEntry(7, 3, 9, 5), TransactionIndexEntry(8, 5, 12, 13)]
    data = b"".join(entry.encode() for entry in entries)
    assert len(data) == 68
    assert decode_transaction_index(data) == entries
    for damaged in (data[:-1], data[34:] + data[:34], b"\1" + data[1:]):
        with pytest.raises(ValueError, match=r"multiple of|fails its check|does not follow"):
            decode_transaction_index(damaged)
    for bit in range(8 * len(data)):
        flipped = bytearray(data)
        flipped[bit // 8] ^= 1 << bit % 8
        with pytest.raises(ValueError, match="fails its check"):
            decode_transaction_index(bytes(flipped))


def test_entries_of_a_transaction_index_without_a_check_are_taken() -> None:
    (entry,) = entries = [TransactionIndexEntry(7, 3, 9, 5)]
    assert decode_transaction_index(bytes(2) + entry.encode()[2:]) == entries


# ---- checkpoints -------------------------------------------------------------------------------------------


THREE = RowShapes({1: 3}, writes=1)


def test_a_checkpoint_reads_back_and_any_damage_is_noticed() -> None:
    rows = [["flights", "0", "1500"], ["late-arrivals", "11", "0"]]
    data = encode_checkpoint(rows, 1)
    assert decode_checkpoint(data, THREE) == rows
    assert decode_checkpoint(encode_checkpoint([], 1), THREE) == []
    for position in range(len(data) - 1):
        with pytest.raises(CheckpointInvalid):
            decode_checkpoint(data[:position], THREE)
        with pytest.raises(CheckpointInvalid):
            decode_checkpoint(data[:position] + bytes([data[position] ^ 1]) + data[position + 1 :], THREE)


@pytest.mark.parametrize("rows", [[], [["4"], ["5"]], [["4", "5"]], [["four"]]])
def test_a_file_of_one_value_has_one_that_can_be_parsed(rows: list[list[str]]) -> None:
    assert parse_value(encode_value(4), int) == 4
    with pytest.raises(CheckpointInvalid):
        parse_value(encode_checkpoint(rows, 1), int)


def test_a_checkpoint_with_a_right_checksum_and_no_text_is_invalid() -> None:
    for body in (b"1\n1\n\xff\n", b"1\none\n4\n", b"1\n"):
        with pytest.raises(CheckpointInvalid):
            decode_checkpoint(body + f"crc32c {crc32c(body):08x}\n".encode(), RowShapes({1: 1}, writes=1))
