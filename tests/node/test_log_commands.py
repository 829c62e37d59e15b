"""`tidegate log`: what people and machines are shown of a data folder, and the exit codes."""

from __future__ import annotations

import json
import subprocess
import sys
import tracemalloc
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from tidegate.coordinator.group.classic import records as group_records
from tidegate.coordinator.group.consumer import records as consumer_records
from tidegate.coordinator.group.consumer.events import TopicShape
from tidegate.coordinator.group.consumer.records import RecordKind
from tidegate.coordinator.group.consumer.state import MemberState
from tidegate.coordinator.transaction import records as transaction_records
from tidegate.coordinator.transaction.state import TransactionMetadata, TransactionPartition, TransactionState
from tidegate.node.log_tools.log_commands import app
from tidegate.runtime.disk import RealDisk
from tidegate.storage.checkpoint import encode_checkpoint
from tidegate.storage.durability.flush_notes import FLUSH_NOTES, RECORD_BYTES, encode_flush_notes, identity_of
from tidegate.storage.inspection.dump import Selection, dump_segment
from tidegate.wire.records import (
    Compression,
    ControlType,
    NewRecord,
    assign_in_place,
    encode_batch,
    encode_marker,
)
from typer.testing import CliRunner

NOW_MS = 1_700_000_000_000


def run(*arguments: object) -> tuple[int, str]:
    result = CliRunner().invoke(app, [str(argument) for argument in arguments])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result.exit_code, result.output


def rows(*arguments: object) -> list[dict[str, Any]]:
    code, output = run(*arguments, "--json")
    assert code == 0, output
    return [json.loads(line) for line in output.splitlines()]


def at(offset: int, data: bytes, *, epoch: int = 4) -> bytes:
    stamped = bytearray(data)
    assign_in_place(stamped, 0, offset, epoch)
    return bytes(stamped)


def partition(root: Path, name: str, *batches: bytes) -> Path:
    folder = root / name
    folder.mkdir(parents=True)
    (folder / f"{0:020d}.log").write_bytes(b"".join(batches))
    (folder / "partition.metadata").write_bytes(
        encode_checkpoint([["00000000-0000-0000-0000-00000000000f"]], 1)
    )
    (folder / "leader-epoch-checkpoint").write_bytes(encode_checkpoint([[4, 0]], 1))
    return folder


@pytest.fixture
def flights(tmp_path: Path) -> Path:
    headers = (("from", b"LIS"), ("empty", None))
    first = [
        NewRecord(b"TP1", "Lisboa – Porto".encode(), headers, NOW_MS),
        NewRecord(b"\x00\xff", None, (), NOW_MS + 1),
    ]
    return partition(
        tmp_path,
        "flights-0",
        at(0, encode_batch(first, compression=Compression.ZSTD)),
        at(2,
            encode_batch([NewRecord(None, b"v" * 300, (), NOW_MS)], producer_id=7, producer_epoch=1,
                         base_sequence=0,
                           transactional=True)),
        at(3, encode_marker(ControlType.ABORT, 7, 2, 9, NOW_MS)),
    )  # fmt: skip


def test_batches_are_shown_as_they_are_stored(flights: Path) -> None:
    found = rows("dump", flights / f"{0:020d}.log")
    assert [row["type"] for row in found] == ["batch"] * 3
    shown = [(row["base_offset"], row["last_offset"], row["codec"]) for row in found]
    assert shown == [(0, 1, "zstd"), (2, 2, "none"), (3, 3, "none")]
    assert found[1]["flags"] == ["transactional"]
    assert found[1]["leader_epoch"] == 4
    assert found[2]["marker"] == "ABORT by coordinator epoch 9"


def test_records_are_readable_and_bytes_that_are_no_text_survive(flights: Path) -> None:
    found = rows("dump", flights / f"{0:020d}.log", "--records")
    assert [row["type"] for row in found] == ["record", "record", "record", "marker"]
    assert (found[0]["key"], found[0]["value"]) == ("TP1", "Lisboa – Porto")
    assert found[0]["headers"] == [["from", "LIS"], ["empty", None]]
    assert found[1]["key"] == {"base64": "AP8="}
    assert found[1]["value"] is None
    code, table = run("dump", flights / f"{0:020d}.log", "--records")
    assert code == 0
    assert "0x00ff" in table
    assert "from=LIS empty=-" in table
    assert "(300 bytes)" in table
    assert "2023-11-14" in table
    assert "v" * 300 in run("dump", flights / f"{0:020d}.log", "--records", "--full")[1]


@pytest.mark.parametrize(("offsets", "shown"), [("1..3", [1, 2]), ("2", [2]), ("..1", [0]), ("3..", [3])])
def test_a_range_of_offsets(flights: Path, offsets: str, shown: list[int]) -> None:
    assert [
        row["offset"] for row in rows("dump", flights / f"{0:020d}.log", "--records", "--offsets", offsets)
    ] == shown


def test_a_range_that_is_none_is_refused(flights: Path) -> None:
    assert run("dump", flights, "--offsets", "one..two")[0] == 2


def test_damage_is_shown_in_its_place_and_the_rest_as_well(flights: Path) -> None:
    path = flights / f"{0:020d}.log"
    content = bytearray(path.read_bytes())
    content[70] ^= 1
    path.write_bytes(content)
    assert [row["type"] for row in rows("dump", path)] == ["damaged", "batch", "batch"]


def test_a_folder_is_shown_file_by_file(flights: Path) -> None:
    found = rows("dump", flights)
    assert [row["type"] for row in found] == ["file"] * 3 + ["segment"] + ["batch"] * 3
    assert rows("dump", flights / "leader-epoch-checkpoint") == [
        {"type": "epoch", "epoch": 4, "start_offset": 0}
    ]
    assert rows("dump", flights.parent)[1]["name"] == "flights-0"


def test_notes_of_flushes_are_shown_one_by_one_also_damaged_ones(tmp_path: Path) -> None:
    topic_id = UUID(int=7)
    content = bytearray(
        encode_flush_notes([(identity_of(topic_id, number), 10 * number) for number in (1, 2, 3)])
    )
    content[RECORD_BYTES + 3] ^= 1
    (tmp_path / FLUSH_NOTES).write_bytes(content)
    first, damaged, third = rows("dump", tmp_path / FLUSH_NOTES)
    assert first == {"type": "flushed", "topic_id": str(topic_id), "partition": 1, "flushed_end_offset": 10}
    assert (damaged["type"], damaged["position"]) == ("damaged", RECORD_BYTES)
    assert third["partition"] == 3
    assert run("dump", tmp_path / FLUSH_NOTES)[0] == 0


def test_other_files_are_refused_in_one_line(flights: Path) -> None:
    (flights / "notes.txt").write_text("")
    for path in (flights / "notes.txt", flights / "absent.log"):
        code, output = run("dump", path)
        assert code == 2
        assert len(output.strip().splitlines()) == 1


def test_transactions_are_decoded(tmp_path: Path) -> None:
    metadata = TransactionMetadata(
        transactional_id="tax", producer_id=7, producer_epoch=3, timeout_ms=60_000,
        state=TransactionState.ONGOING,
        last_update_ms=NOW_MS, start_ms=NOW_MS,
        partitions=frozenset({TransactionPartition("flights", 2, None)}),
    )  # fmt: skip
    key = transaction_records.encode_key("tax")
    log = partition(
        tmp_path, "__transaction_state-3",
        at(0, encode_batch([
            NewRecord(key, transaction_records.encode_value(metadata), (), NOW_MS),
            NewRecord(key, None, (), NOW_MS),
            NewRecord(key, b"\x00\x63", (), NOW_MS),
        ])),
    )  # fmt: skip
    found = [row for row in rows("dump", log, "--decode") if row["type"] == "record"]
    says = found[0]["says"]
    assert (says["transactional_id"], says["state"], says["partitions"]) == ("tax", "ONGOING", ["flights-2"])
    assert found[1]["says"] == {"transactional_id": "tax", "forgotten": True}
    assert "version 99" in found[2]["undecodable"]
    assert "state=ONGOING" in run("dump", log, "--decode")[1]


def test_committed_offsets_are_decoded(tmp_path: Path) -> None:
    value = group_records.encode_offset_value(group_records.OffsetValue(42, 1, "", NOW_MS))
    log = partition(
        tmp_path,
        "__consumer_offsets-0",
        at(
            0,
            encode_batch(
                [NewRecord(group_records.encode_offset_key("billing", "flights", 2), value, (), NOW_MS)]
            ),
        ),
    )
    (says,) = [row["says"] for row in rows("dump", log, "--decode") if row["type"] == "record"]
    assert (says["group_id"], says["topic"], says["partition"], says["offset"]) == (
        "billing",
        "flights",
        2,
        42,
    )


def test_consumer_groups_are_decoded(tmp_path: Path) -> None:
    """The records of KIP-848, each of its kind."""
    topic, owned = UUID(int=1), frozenset({(UUID(int=1), 2)})
    member = consumer_records.MemberMetadata("i", None, "client", "/h", ("flights",), None, 60_000, None)
    current = consumer_records.CurrentAssignment(5, 4, MemberState.UNREVOKED_PARTITIONS, frozenset(), owned)
    values: dict[RecordKind, Any] = {
        RecordKind.GROUP: 7, RecordKind.TOPICS: {"flights": TopicShape(topic, 3)}, RecordKind.MEMBER: member,
        RecordKind.TARGET: owned, RecordKind.CURRENT: current,
    }  # fmt: skip
    written = []
    for kind, value in values.items():
        key = consumer_records.encode_key(consumer_records.Key(kind, "billing", "m"))
        written.append(NewRecord(key, consumer_records.encode_value(kind, value), (), NOW_MS))
    written.append(NewRecord(written[-1].key, None, (), NOW_MS))
    log = partition(tmp_path, "__consumer_offsets-0", at(0, encode_batch(written)))
    says = [row["says"] for row in rows("dump", log, "--decode") if row["type"] == "record"]
    assert [each["kind"] for each in says] == ["group", "topics", "member", "target", "current", "current"]
    assert {each["group_id"] for each in says} == {"billing"}
    assert says[0]["epoch"] == 7
    assert says[1]["topics"] == {"flights": f"{topic} (3)"}
    assert (says[2]["member_id"], says[2]["instance_id"], says[2]["topic_names"]) == ("m", "i", ["flights"])
    assert says[3]["partitions"] == [f"{topic}-2"]
    assert (says[4]["epoch"], says[4]["state"], says[4]["revoking"]) == (
        5,
        "UNREVOKED_PARTITIONS",
        [f"{topic}-2"],
    )
    assert says[5]["forgotten"] is True


def test_decoding_needs_to_know_whose_records_they_are(flights: Path) -> None:
    assert run("dump", flights, "--decode")[0] == 2


def test_verify_tells_by_its_exit_code(flights: Path, tmp_path: Path) -> None:
    root = flights.parent
    (root / "meta.properties").write_text("version=1\ncluster.id=lisbon\nnode.id=1\ndirectory.id=d\n")
    (root / "partition-checkpoint").write_bytes(encode_checkpoint([["flights", 0, 4, 4, 0]], 1))
    (flights / f"{0:020d}.index").write_bytes(bytes(8))
    code, output = run("verify", root)
    assert (code, "no violation" in output) == (0, True), output
    assert "stopped uncleanly" in output
    assert "cluster.id lisbon" in output
    path = flights / f"{0:020d}.log"
    content = bytearray(path.read_bytes())
    content[70] ^= 1
    path.write_bytes(content)
    code, output = run("verify", root)
    assert code == 1
    for part in (
        "violation: batch-damaged",
        str(path),
        "byte 0",
        "offset 0",
        "means",
        "to do",
        "1 violations",
    ):
        assert part in output
    code, output = run("verify", root, "--json")
    found = [json.loads(line) for line in output.splitlines()]
    assert code == 1
    assert [row["type"] for row in found] == ["folder", "partition", "finding", "summary"]
    assert (found[2]["kind"], found[2]["position"], found[2]["offset"]) == ("batch-damaged", 0, 0)
    assert run("verify", tmp_path / "absent")[0] == 2


def test_a_reader_that_has_gone_is_no_error(flights: Path) -> None:
    path = flights / f"{0:020d}.log"
    path.write_bytes(
        b"".join(at(offset, encode_batch([NewRecord(b"k", b"v", (), NOW_MS)])) for offset in range(20_000))
    )
    for form in ("--json", "--full"):
        command = [
            sys.executable,
            "-m",
            "tidegate.node.log_tools.log_commands",
            "dump",
            str(path),
            "--records",
            form,
        ]
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
            assert process.stdout is not None
            assert process.stderr is not None
            process.stdout.readline()
            process.stdout.close()
            assert process.stderr.read() == b""


def test_a_segment_is_never_in_memory_as_a_whole(tmp_path: Path) -> None:
    data = encode_batch([NewRecord(b"k", b"v" * 100_000, (), NOW_MS)])
    path = tmp_path / f"{0:020d}.log"
    with path.open("wb") as file:
        for offset in range(600):
            file.write(at(offset, data))
    tracemalloc.start()
    try:
        assert sum(1 for _ in dump_segment(RealDisk(), path, Selection(records=True))) == 1200
        assert tracemalloc.get_traced_memory()[1] < 8_000_000
    finally:
        tracemalloc.stop()


def test_a_clusters_folder_is_refused_with_the_data_folders_below(tmp_path: Path) -> None:
    for name in ("node-1", "node-2"):
        (tmp_path / name / "data").mkdir(parents=True)
        (tmp_path / name / "data" / "meta.properties").write_text("version=1\n")
    code, output = run("verify", tmp_path)
    assert code == 2
    assert f"verify {tmp_path}/node-1/data {tmp_path}/node-2/data" in output
    code, output = run("verify", tmp_path / "node-1")
    assert code == 2
    assert f"verify {tmp_path}/node-1/data" in output
