"""One way of damaging a data folder after the other, each under the kind of finding that `verify` must give
for it."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from uuid import UUID

from crc32c import crc32c
from tidegate.storage.checkpoint import decode_checkpoint, encode_checkpoint
from tidegate.storage.directory.folder_notes import PARTITION_CHECKPOINT_SHAPES
from tidegate.storage.epoch_cache import EPOCH_CHECKPOINT_SHAPES
from tidegate.storage.producers.producer_snapshot import SNAPSHOT_VERSIONS
from tidegate.storage.segment.checksums import decode_checksums
from tidegate.storage.segment.transaction_index import decode_transaction_index
from tidegate.wire.records import (
    ControlType,
    NewRecord,
    assign_in_place,
    encode_batch,
    encode_marker,
    iterate_headers,
)

from .damaging import (
    P,
    batches,
    edit_snapshot,
    end_of,
    find,
    flip,
    patch,
    recount,
    replace_batch,
    rest_of_sequences,
    restamp,
    rewrite_checkpoint,
    segments,
    without_snapshots,
)
from .data_folder import STATE, open_folder
from .workload import NOW_MS, append_marker, batch, marker

Damage = Callable[[Path], None]
CLEAN: dict[str, list[tuple[str, Damage]]] = {}
UNCLEAN: dict[str, list[tuple[str, Damage]]] = {}


def damages(kind: str, *, after: dict[str, list[tuple[str, Damage]]] = CLEAN) -> Callable[[Damage], Damage]:
    def note(damage: Damage) -> Damage:
        after.setdefault(kind, []).append((damage.__name__, damage))
        return damage

    return note


@damages("batch-damaged")
def a_bit_of_a_record(root: Path) -> None:
    flip(segments(root / P)[1], batches(segments(root / P)[1])[1][0] + 70)


@damages("batch-damaged")
def the_length_of_a_batch(root: Path) -> None:
    position = batches(segments(root / P)[1])[1][0]
    patch(segments(root / P)[1], position + 8, (1 << 30).to_bytes(4, "big"))


@damages("batch-damaged")
def the_last_bytes_of_a_cleanly_closed_log(root: Path) -> None:
    active = segments(root / P)[-1]
    active.write_bytes(active.read_bytes()[:-5])


@damages("batch-damaged", after=UNCLEAN)
def a_bit_below_the_recovery_point(root: Path) -> None:
    flip(segments(root / P)[2], 80)


@damages("torn-tail", after=UNCLEAN)
def half_a_batch_at_the_end(root: Path) -> None:
    active = segments(root / P)[-1]
    active.write_bytes(active.read_bytes() + batch(2)[:50])


@damages("torn-tail", after=UNCLEAN)
def zeros_at_the_end(root: Path) -> None:
    active = segments(root / P)[-1]
    active.write_bytes(active.read_bytes() + bytes(4096))


@damages("offset-gap")
def a_batch_that_skips_offsets(root: Path) -> None:
    path = segments(root / "flights-1")[-1]
    content = bytearray(path.read_bytes())
    position, header = list(iterate_headers(content))[-1]
    assign_in_place(content, position, header.base_offset + 1, header.partition_leader_epoch)
    path.write_bytes(content)
    for name in ("00*.snapshot", "*.txnindex"):
        for each in sorted((root / "flights-1").glob(name))[-1:]:
            each.unlink()
    rewrite_checkpoint(root, "flights-1", 2, header.base_offset + 2)


@damages("offset-order")
def a_batch_that_repeats_offsets(root: Path) -> None:
    path = segments(root / P)[1]
    content = bytearray(path.read_bytes())
    position, header = list(iterate_headers(content))[2]
    assign_in_place(content, position, header.base_offset - 1, header.partition_leader_epoch)
    content_after = bytes(content[: position + header.size_bytes])
    follower, following = list(iterate_headers(content))[3]
    assert len(content_after) == follower
    changed = bytearray(content)
    # One offset more in it, so that the next batch follows again.
    changed[position + 23 : position + 27] = (header.last_offset_delta + 1).to_bytes(4, "big")
    checksum = crc32c(bytes(changed[position + 21 : position + header.size_bytes]))
    changed[position + 17 : position + 21] = checksum.to_bytes(4, "big")
    assert following.base_offset == header.next_offset
    path.write_bytes(changed)


@damages("segment-name")
def a_segment_under_another_name(root: Path) -> None:
    old = segments(root / P)[1].name.removesuffix(".log")
    for path in (root / P).glob(f"{old}.*"):
        if path.suffix != ".snapshot":
            path.rename(path.with_name(path.name.replace(old, f"{int(old) + 1:020d}")))


@damages("segment-overlap")
def a_segment_that_was_there_before(root: Path) -> None:
    path = segments(root / P)[1]
    base = int(path.name.removesuffix(".log"))
    copied = base + 1
    data = bytearray(path.read_bytes())
    for position, header in list(iterate_headers(data)):
        assign_in_place(data, position, copied + header.base_offset - base, header.partition_leader_epoch)
    size, last = next((at + h.size_bytes, h) for at, h in iterate_headers(data))
    path.with_name(f"{copied:020d}.log").write_bytes(data[:size])
    for suffix, of in (("index", 8), ("timeindex", 12)):
        source = path.with_suffix(f".{suffix}").read_bytes()[:of]
        path.with_name(f"{copied:020d}.{suffix}").write_bytes(source)
    assert last
    checksums = decode_checksums(path.with_suffix(".seal").read_bytes(), base)
    path.with_name(f"{copied:020d}.seal").write_bytes(
        checksums._replace(base_offset=copied, log_bytes=size).encode()
    )


@damages("segment-gap")
def a_lost_segment(root: Path) -> None:
    base = segments(root / P)[2].name.removesuffix(".log")
    for path in (root / P).glob(f"{base}.*"):
        path.unlink()


@damages("epoch-order")
def a_leader_epoch_of_the_past(root: Path) -> None:
    path = segments(root / P)[-1]
    content = bytearray(path.read_bytes())
    position, header = list(iterate_headers(content))[-1]
    assign_in_place(content, position, header.base_offset, header.partition_leader_epoch - 1)
    path.write_bytes(content)


@damages("index-missing")
def a_lost_offset_index(root: Path) -> None:
    segments(root / P)[1].with_suffix(".index").unlink()


@damages("index-missing")
def a_lost_time_index(root: Path) -> None:
    segments(root / P)[1].with_suffix(".timeindex").unlink()


@damages("offset-index-damaged")
def half_an_entry_of_the_offset_index(root: Path) -> None:
    path = segments(root / P)[1].with_suffix(".index")
    path.write_bytes(path.read_bytes()[:-3])


@damages("offset-index-damaged")
def an_empty_offset_index(root: Path) -> None:
    segments(root / P)[1].with_suffix(".index").write_bytes(b"")


@damages("offset-index-wrong")
def an_index_entry_between_batches(root: Path) -> None:
    path = segments(root / P)[1].with_suffix(".index")
    position = int.from_bytes(path.read_bytes()[12:16], "big")
    patch(path, 12, (position + 1).to_bytes(4, "big"))


@damages("offset-index-wrong", after=UNCLEAN)
def an_index_entry_of_another_offset(root: Path) -> None:
    path = segments(root / P)[1].with_suffix(".index")
    offset = int.from_bytes(path.read_bytes()[8:12], "big")
    patch(path, 8, (offset + 1).to_bytes(4, "big"))


@damages("time-index-damaged")
def a_time_index_that_falls(root: Path) -> None:
    path = segments(root / P)[1].with_suffix(".timeindex")
    path.write_bytes(path.read_bytes()[12:24] + path.read_bytes()[:12])


@damages("time-index-wrong")
def a_timestamp_that_no_batch_has(root: Path) -> None:
    path = segments(root / P)[1].with_suffix(".timeindex")
    flip(path, 7)


@damages("time-index-wrong")
def a_time_index_without_its_end(root: Path) -> None:
    path = segments(root / P)[1].with_suffix(".timeindex")
    path.write_bytes(path.read_bytes()[:-12])


@damages("seal-damaged")
def a_flipped_bit_in_a_seal(root: Path) -> None:
    flip(segments(root / P)[1].with_suffix(".seal"), 9)


@damages("seal-wrong")
def the_seal_of_other_indexes(root: Path) -> None:
    path = segments(root / P)[1].with_suffix(".seal")
    path.write_bytes(decode_checksums(path.read_bytes(), int(path.stem))._replace(index_crc=7).encode())


@damages("segment-short")
def a_compacted_segment_that_lost_its_last_batch(root: Path) -> None:
    path = segments(root / "state-0")[0]
    path.write_bytes(path.read_bytes()[: batches(path)[-1][0]])
    path.with_suffix(".countindex").unlink()


@damages("count-index-damaged")
def a_bit_of_a_count_index(root: Path) -> None:
    flip(segments(root / P)[1].with_suffix(".countindex"), 17)


@damages("count-index-damaged", after=UNCLEAN)
def a_count_index_without_its_end(root: Path) -> None:
    path = segments(root / P)[1].with_suffix(".countindex")
    path.write_bytes(path.read_bytes()[:-1])


@damages("count-index-wrong")
def an_absent_count_that_is_too_low(root: Path) -> None:
    recount(root, lambda index: setattr(index, "absent", -1))


@damages("count-index-wrong", after=UNCLEAN)
def a_count_index_that_is_wrong_at_one_entry(root: Path) -> None:
    recount(root, lambda index: index._counts.__setitem__(0, 1))


@damages("count-index-wrong")
def an_entry_of_a_count_index_between_batches(root: Path) -> None:
    recount(root, lambda index: index._positions.__setitem__(0, 1))


@damages("count-index-wrong")
def an_aborted_transaction_that_counts(root: Path) -> None:
    recount(root, lambda index: index._runs.pop(), with_runs=True)


@damages("count-index-wrong")
def an_aborted_transaction_that_is_taken_off_twice(root: Path) -> None:
    recount(root, lambda index: index._runs.append(index._runs[0]), with_runs=True)


@damages("count-index-wrong")
def a_run_of_too_many_records(root: Path) -> None:
    recount(root, lambda index: index._runs.append(index._runs.pop()._replace(records=7)), with_runs=True)


@damages("transaction-index-damaged")
def half_an_entry_of_the_transaction_index(root: Path) -> None:
    path = sorted((root / P).glob("*.txnindex"))[0]
    path.write_bytes(path.read_bytes()[:-1])


@damages("transaction-index-wrong")
def an_abort_without_its_index(root: Path) -> None:
    sorted((root / P).glob("*.txnindex"))[0].unlink()


@damages("transaction-index-wrong")
def an_abort_that_never_was(root: Path) -> None:
    path = sorted((root / P).glob("*.txnindex"))[0]
    last = decode_transaction_index(path.read_bytes())[-1]
    path.write_bytes(path.read_bytes() + last._replace(last_offset=last.last_offset + 1).encode())


@damages("transaction-index-wrong", after=UNCLEAN)
def an_abort_from_another_offset(root: Path) -> None:
    path = sorted((root / P).glob("*.txnindex"))[0]
    first = decode_transaction_index(path.read_bytes())[0]
    patch(path, 0, first._replace(first_offset=first.first_offset + 1).encode())


@damages("snapshot-damaged")
def a_bit_of_a_snapshot(root: Path) -> None:
    flip(sorted((root / P).glob("*.snapshot"))[1], 40)


@damages("snapshot-unread")
def a_snapshot_of_a_later_version(root: Path) -> None:
    edit_snapshot(sorted((root / P).glob("*.snapshot"))[1], 0, SNAPSHOT_VERSIONS.writes + 1, 2)


@damages("snapshot-wrong")
def a_snapshot_under_another_name(root: Path) -> None:
    older, newer = sorted((root / P).glob("*.snapshot"))[:2]
    newer.write_bytes(older.read_bytes())


@damages("snapshot-wrong")
def a_snapshot_with_another_epoch(root: Path) -> None:
    edit_snapshot(sorted((root / P).glob("*.snapshot"))[1], 18 + 8, 77, 2)


@damages("snapshot-wrong")
def a_snapshot_without_its_producers(root: Path) -> None:
    path = sorted((root / P).glob("*.snapshot"))[1]
    head = path.read_bytes()[4 : 4 + 10] + bytes(8)
    path.write_bytes(crc32c(head).to_bytes(4, "big") + head)


@damages("snapshot-beyond-end")
def a_snapshot_of_a_longer_log(root: Path) -> None:
    path = sorted((root / P).glob("*.snapshot"))[-1]
    end = int(path.name.removesuffix(".snapshot")) + 10
    copied = path.with_name(f"{end:020d}.snapshot")
    shutil.copy(path, copied)
    edit_snapshot(copied, 2, end, 8)


@damages("sequence-gap")
def a_sequence_that_was_skipped(root: Path) -> None:
    path, number = find(root / P, lambda header: header.producer_id == 7, skip=6)

    def later(content: bytearray, position: int) -> None:
        sequence = int.from_bytes(content[position + 53 : position + 57], "big")
        content[position + 53 : position + 57] = (sequence + 1).to_bytes(4, "big")

    without_snapshots(root / P)
    rest_of_sequences(root / P, path, number, later)


@damages("producer-epoch-order")
def a_batch_of_a_fenced_producer(root: Path) -> None:
    path, number = find(
        root / P, lambda h: h.producer_id == 8 and h.is_transactional and not h.is_control, skip=21
    )

    def older(content: bytearray, position: int) -> None:
        content[position + 51 : position + 53] = (1).to_bytes(2, "big")

    without_snapshots(root / P)
    restamp(path, number, older)


@damages("transaction-interrupted")
def a_plain_batch_in_a_transaction(root: Path) -> None:
    path, number = find(root / P, lambda h: h.producer_id == 8 and h.base_sequence == 2)

    def plain(content: bytearray, position: int) -> None:
        content[position + 22] &= ~0x10

    restamp(path, number, plain)


@damages("transaction-merged")
def a_transaction_that_never_ended(root: Path) -> None:
    # The marker of a commit becomes an unknown control record: it ends nothing.
    path, number = find(root / P, lambda h: h.is_control, skip=2)

    def unknown(content: bytearray, position: int) -> None:
        at = content.index(b"\x00\x00\x00\x01", position + 61)
        content[at + 3] = 9

    without_snapshots(root / P)
    restamp(path, number, unknown)


@damages("marker-damaged")
def a_marker_without_a_type(root: Path) -> None:
    path, number = find(root / P, lambda h: h.is_control, skip=11)
    old = batches(path)[number]
    new = encode_batch(
        [NewRecord(b"k", b"value of a marker!"[: 12 - 3], (), NOW_MS)], producer_id=8, producer_epoch=12,
        transactional=True,
        control=True,
    )  # fmt: skip
    assert len(new) == old[1]
    without_snapshots(root / P)
    replace_batch(path, number, new)


@damages("marker-epoch")
def a_marker_of_an_older_epoch(root: Path) -> None:
    path, number = find(root / P, lambda h: h.is_control, skip=11)
    without_snapshots(root / P)
    replace_batch(path, number, encode_marker_at(8, 3, coordinator_epoch=2))


@damages("marker-coordinator-epoch")
def a_marker_of_an_older_coordinator(root: Path) -> None:
    path, number = find(root / P, lambda h: h.is_control, skip=11)
    without_snapshots(root / P)
    replace_batch(path, number, encode_marker_at(8, 12, coordinator_epoch=1))


def encode_marker_at(pid: int, epoch: int, *, coordinator_epoch: int) -> bytes:
    return encode_marker(ControlType.COMMIT, pid, epoch, coordinator_epoch, NOW_MS)


@damages("marker-alone")
def a_marker_for_nothing(root: Path) -> None:
    folder = open_folder(root)
    append_marker(folder.logs["flights", 0], marker(8, 13, commit=True, coordinator_epoch=5), leader_epoch=2)
    folder.close(clean=True, broker_epoch=4)


@damages("epoch-history-damaged")
def a_bit_of_the_epoch_history(root: Path) -> None:
    flip(root / P / "leader-epoch-checkpoint", 8)


@damages("epoch-history-wrong")
def a_lost_epoch_history(root: Path) -> None:
    (root / P / "leader-epoch-checkpoint").unlink()


@damages("epoch-history-wrong", after=UNCLEAN)
def an_epoch_from_another_offset(root: Path) -> None:
    path = root / P / "leader-epoch-checkpoint"
    rows = decode_checkpoint(path.read_bytes(), EPOCH_CHECKPOINT_SHAPES)
    rows[1][1] = str(int(rows[1][1]) + 2)
    path.write_bytes(encode_checkpoint(rows, 1))


@damages("epoch-history-wrong")
def an_epoch_without_a_record(root: Path) -> None:
    path = root / P / "leader-epoch-checkpoint"
    rows = decode_checkpoint(path.read_bytes(), EPOCH_CHECKPOINT_SHAPES)
    path.write_bytes(encode_checkpoint([["0", "0"], *([str(int(e) * 2), s] for e, s in rows[1:])], 1))


@damages("leftover", after=UNCLEAN)
def a_cleaned_segment_that_never_came(root: Path) -> None:
    (root / P / f"{0:020d}.log.cleaned").write_bytes(b"half of it")


@damages("leftover", after=UNCLEAN)
def an_index_without_its_segment(root: Path) -> None:
    (root / P / f"{999:020d}.index").write_bytes(b"")


@damages("leftover", after=UNCLEAN)
def a_folder_on_its_way_out(root: Path) -> None:
    shutil.copytree(root / P, root / "0-delete")


@damages("leftover", after=UNCLEAN)
def a_partition_whose_creation_was_cut_short(root: Path) -> None:
    (root / "other-0").mkdir()


@damages("stray-file")
def an_unknown_file(root: Path) -> None:
    (root / P / "do-not-touch.txt").write_text("why?")


@damages("set-aside")
def a_damaged_log_kept(root: Path) -> None:
    (root / "0-damaged").mkdir()


@damages("swap-damaged", after=UNCLEAN)
def a_decision_that_cannot_be_read(root: Path) -> None:
    (root / P / f"{0:020d}.swap").write_bytes(b"1\n")


@damages("known-damaged")
def a_log_that_the_node_gave_up(root: Path) -> None:
    (root / P / "damaged").write_text("00.log is damaged at byte 7")


@damages("checkpoint-damaged")
def a_bit_of_the_checkpoint(root: Path) -> None:
    flip(root / "partition-checkpoint", 9)


@damages("recovery-point-beyond-end")
def flushed_data_that_is_gone(root: Path) -> None:
    path = segments(root / P)[-1]
    path.write_bytes(path.read_bytes()[: batches(path)[-1][0]])


@damages("recovery-point-beyond-end", after=UNCLEAN)
def a_log_without_segments(root: Path) -> None:
    for path in (root / P).glob("0*"):
        path.unlink()


@damages("high-watermark-beyond-end")
def a_high_watermark_of_lost_data(root: Path) -> None:
    rewrite_checkpoint(root, P, 3, 10_000)


@damages("high-watermark-lost", after=UNCLEAN)
def a_high_watermark_above_what_was_flushed(root: Path) -> None:
    rewrite_checkpoint(root, P, 3, 10_000)


@damages("log-start-beyond-end")
def a_log_start_above_the_log_end(root: Path) -> None:
    rewrite_checkpoint(root, P, 4, 10_000)


@damages("log-start-missing")
def a_lost_first_segment(root: Path) -> None:
    for path in (root / P).glob(f"{0:020d}.*"):
        path.unlink()


@damages("clean-end-differs")
def a_batch_that_came_after_the_clean_stop(root: Path) -> None:
    path = segments(root / P)[-1]
    late = bytearray(batch(1, timestamp_ms=NOW_MS))
    assign_in_place(late, 0, end_of(root, P), 2)
    path.write_bytes(path.read_bytes() + late)


@damages("partition-missing")
def a_lost_partition(root: Path) -> None:
    shutil.rmtree(root / P)


@damages("partition-unnoted")
def a_partition_that_came_after_the_clean_stop(root: Path) -> None:
    path = root / "partition-checkpoint"
    rows = decode_checkpoint(path.read_bytes(), PARTITION_CHECKPOINT_SHAPES)
    path.write_bytes(encode_checkpoint((row for row in rows if row[0] != "small"), 1))


@damages("clean-mark-damaged")
def a_bit_of_the_clean_mark(root: Path) -> None:
    flip(root / "clean-shutdown", 4)


@damages("log-start-damaged")
def a_log_start_that_cannot_be_read(root: Path) -> None:
    (root / P / "log-start").write_bytes(b"1\n1\n3\ncrc32c 00000000\n")


@damages("identity-missing")
def a_folder_without_its_owner_file(root: Path) -> None:
    (root / "meta.properties").unlink()


@damages("identity-damaged")
def an_identity_without_a_node(root: Path) -> None:
    path = root / "meta.properties"
    path.write_text(
        "".join(line for line in path.read_text().splitlines(True) if not line.startswith("node.id"))
    )


@damages("identity-damaged")
def a_bit_of_the_node_id(root: Path) -> None:
    flip(root / "meta.properties", (root / "meta.properties").read_bytes().index(b"node.id=") + 8)


@damages("topic-id-missing")
def data_without_a_topic_id(root: Path) -> None:
    (root / "state-0" / "partition.metadata").unlink()


@damages("topic-id-damaged")
def a_bit_of_the_topic_id(root: Path) -> None:
    flip(root / P / "partition.metadata", 12)


@damages("topic-id-differs")
def a_partition_of_an_earlier_topic(root: Path) -> None:
    (root / P / "partition.metadata").write_bytes(encode_checkpoint([[UUID(int=0xE)]], 1))


@damages("topic-id-shared")
def a_folder_that_was_renamed(root: Path) -> None:
    (root / "small-0" / "partition.metadata").write_bytes(encode_checkpoint([[STATE]], 1))


@damages("config-damaged")
def a_bit_of_the_configuration(root: Path) -> None:
    flip(root / P / "log-config", 30)


@damages("cleaner-notes-damaged")
def a_bit_of_the_cleaners_notes(root: Path) -> None:
    (root / "cleaner-offset-checkpoint").write_bytes(b"1\n0\ncrc32c 00000000\n")
