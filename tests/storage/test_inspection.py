"""`verify` finds nothing in a healthy folder, and in one that is damaged in exactly one way exactly that.

Every kind of finding has its damage here: a check that stopped looking would turn its test red.
"""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from tidegate.runtime.disk import RealDisk, RealFile
from tidegate.runtime.lock_probe import is_locked
from tidegate.storage.directory.folder_owner import decode_owner, encode_owner
from tidegate.storage.inspection.directory import NotInspectable, VerificationOptions, verify
from tidegate.storage.inspection.findings import KINDS, Finding, Severity
from tidegate.storage.inspection.partition import PartitionReport
from tidegate.storage.inspection.verification import FolderState
from tidegate.storage.segment.swap import SEGMENT_SUFFIXES, decide_swap

from .damages import CLEAN, UNCLEAN, Damage, a_snapshot_without_its_producers
from .damaging import P, end_of, flip, look, rewrite_checkpoint, segments
from .data_folder import FLIGHTS, build, fill, open_folder
from .workload import NOW_MS, append, batch


@pytest.fixture(scope="module")
def originals(tmp_path_factory: pytest.TempPathFactory) -> dict[bool, Path]:
    root = tmp_path_factory.mktemp("folders")
    return {clean: build(root / str(clean), clean=clean) for clean in (True, False)}


@pytest.fixture
def clean(originals: dict[bool, Path], tmp_path: Path) -> Path:
    return Path(shutil.copytree(originals[True], tmp_path / "clean"))


@pytest.fixture
def unclean(originals: dict[bool, Path], tmp_path: Path) -> Path:
    return Path(shutil.copytree(originals[False], tmp_path / "unclean"))


def findings(*paths: Path, now_ms: int = NOW_MS) -> list[Finding]:
    return [finding for report in look(*paths, now_ms=now_ms) for finding in report.findings]


def kinds(*paths: Path, now_ms: int = NOW_MS) -> list[str]:
    return [finding.kind for finding in findings(*paths, now_ms=now_ms)]


# ---- healthy folders ---------------------------------------------------------------------------------------


def test_a_healthy_folder_has_no_finding_however_it_was_left(clean: Path, unclean: Path) -> None:
    for path, state in ((clean, FolderState.CLEAN), (unclean, FolderState.UNCLEAN)):
        reports = look(path)
        assert {report.state for report in reports} == {state}
        assert [report.findings for report in reports] == [[]] * 5
        of = {report.directory.name: report for report in reports if isinstance(report, PartitionReport)}
        assert (of[P].batches, of[P].producers, of[P].first_offset, of[P].open_transactions) == (60, 2, 0, 0)
        assert of[P].topic_id == FLIGHTS
        assert of[P].segments > 3


def test_a_folder_in_use_is_looked_at_while_it_is_written(clean: Path) -> None:
    folder = open_folder(clean)
    try:
        before = {path: path.read_bytes() for path in clean.rglob("*") if path.is_file()}
        reports = look(clean)
        assert {report.state for report in reports} == {FolderState.RUNNING}
        assert [finding for report in reports for finding in report.findings] == []
        assert {path: path.read_bytes() for path in clean.rglob("*") if path.is_file()} == before
        append(folder.logs["flights", 0], batch(2), leader_epoch=9)
        assert kinds(clean) == []
        active = segments(clean / P)[-1]
        active.write_bytes(active.read_bytes() + batch(2)[:-9])  # half a batch: a write in progress
        assert kinds(clean) == ["torn-tail"]
    finally:
        folder.close(clean=False)


def test_looking_writes_nothing(clean: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    flip(segments(clean / P)[1], 80)
    for owner, names in (
        (
            RealDisk,
            ("write_atomic", "rename", "remove", "remove_tree", "make_directory", "sync_directory", "lock"),
        ),
        (RealFile, ("write_at", "write_vector_at", "truncate", "sync_data")),
    ):
        for name in names:
            monkeypatch.setattr(owner, name, lambda *_a, _n=name, **_k: pytest.fail(f"{_n} was called"))
    before = {
        path: (path.read_bytes(), path.stat().st_mtime_ns) for path in clean.rglob("*") if path.is_file()
    }
    assert kinds(clean) == ["batch-damaged"]
    assert {
        path: (path.read_bytes(), path.stat().st_mtime_ns) for path in clean.rglob("*") if path.is_file()
    } == before


def test_a_stopped_folder_can_be_started_while_it_is_looked_at(clean: Path) -> None:
    steps = verify(RealDisk(), [clean], VerificationOptions(NOW_MS, is_locked))
    next(steps)
    folder = open_folder(clean)
    folder.close(clean=False)


def test_one_partition_by_itself_is_asked_in_the_light_of_its_data_folder(
    unclean: Path, tmp_path: Path
) -> None:
    rewrite_checkpoint(unclean, P, 2, 10_000)
    assert kinds(unclean / P) == ["recovery-point-beyond-end"]
    alone = Path(shutil.copytree(unclean / P, tmp_path / "taken-away"))
    assert [(r.state, r.findings) for r in look(alone)] == [(FolderState.UNKNOWN, [])] * 2
    flip(segments(alone)[1], 80)
    assert kinds(alone) == ["batch-damaged"]


@pytest.mark.parametrize("name", ["absent", "file", "empty"])
def test_what_is_no_data_folder_is_refused(tmp_path: Path, name: str) -> None:
    (tmp_path / "file").write_text("")
    (tmp_path / "empty").mkdir()
    with pytest.raises(NotInspectable):
        look(tmp_path / name)


def test_every_kind_of_finding_says_what_it_means_and_what_to_do() -> None:
    for kind in KINDS.values():
        assert kind.meaning
        assert kind.action
        assert not kind.meaning.endswith(".")


# ---- one damage, and its finding ---------------------------------------------------------------------------


def _cases(table: dict[str, list[tuple[str, Damage]]]) -> list[object]:
    return [pytest.param(kind, damage, id=name) for kind, cases in table.items() for name, damage in cases]


@pytest.mark.parametrize(("kind", "damage"), _cases(CLEAN))
def test_one_damage_after_a_clean_stop_is_one_finding(clean: Path, kind: str, damage: Damage) -> None:
    damage(clean)
    found = findings(clean)
    assert [finding.kind for finding in found] == [kind], [
        f"{f.kind} {f.file.name} {f.detail}" for f in found
    ]


@pytest.mark.parametrize(("kind", "damage"), _cases(UNCLEAN))
def test_one_damage_after_an_unclean_stop_is_one_finding(unclean: Path, kind: str, damage: Damage) -> None:
    damage(unclean)
    found = findings(unclean)
    assert [finding.kind for finding in found] == [kind], [
        f"{f.kind} {f.file.name} {f.detail}" for f in found
    ]


# ---- damage that needs a live folder -----------------------------------------------------------------------


def test_a_clean_mark_beside_a_running_node_is_found(clean: Path) -> None:
    mark = (clean / "clean-shutdown").read_bytes()
    folder = open_folder(clean)
    (clean / "clean-shutdown").write_bytes(mark)
    try:
        assert kinds(clean) == ["clean-mark-while-running"]
    finally:
        folder.close(clean=False)


def test_damage_in_a_folder_in_use_is_found(clean: Path) -> None:
    folder = open_folder(clean)
    try:
        flip(segments(clean / P)[1], 90)
        assert kinds(clean) == ["batch-damaged"]
    finally:
        folder.close(clean=False)


def test_two_folders_are_compared(clean: Path, tmp_path: Path) -> None:
    other = Path(shutil.copytree(clean, tmp_path / "other"))
    assert kinds(clean, other) == ["directory-id-twice", *["partition-twice"] * 4]
    owner = decode_owner((other / "meta.properties").read_bytes())
    (other / "meta.properties").write_bytes(encode_owner({**owner, "node.id": "2", "directory.id": "disk-2"}))
    for name in (P, "flights-1", "small-0", "state-0"):
        shutil.rmtree(other / name)
    (other / "partition-checkpoint").unlink()
    assert kinds(clean, other) == ["identity-differs"]


def test_a_transaction_that_is_open_for_too_long_is_named(clean: Path) -> None:
    folder = open_folder(clean)
    begun = folder.logs["flights", 0]
    append(begun, batch(1, pid=9, epoch=0, sequence=0, transactional=True), leader_epoch=2)
    folder.close(clean=True)
    assert kinds(clean) == []
    found = findings(clean, now_ms=NOW_MS + 7_200_000)
    assert [(finding.kind, finding.offset) for finding in found] == [
        ("transaction-open", end_of(clean, P) - 1)
    ]


def test_an_unreadable_segment_is_a_finding_and_the_rest_is_looked_at(
    clean: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken = segments(clean / P)[1].name
    read_at = RealFile.read_at

    def failing(self: RealFile, position: int, length: int) -> bytes:
        if self.path.name == broken and self.path.parent.name == P:
            raise OSError(5, "Input/output error", str(self.path))
        return read_at(self, position, length)

    monkeypatch.setattr(RealFile, "read_at", failing)
    found = findings(clean)
    assert [(finding.kind, finding.file.name) for finding in found] == [("unreadable", broken)]


def test_a_decided_replacement_of_segments_is_seen_as_finished(unclean: Path) -> None:
    first, second = segments(unclean / P)[:2]
    for suffix in SEGMENT_SUFFIXES:
        source = first.with_suffix(f".{suffix}")
        if source.exists():
            shutil.copy(source, source.with_name(source.name + ".cleaned"))
    decide_swap(RealDisk(), unclean / P, [int(first.stem)], int(first.stem))
    names = {finding.file.name for finding in findings(unclean)}
    assert set(kinds(unclean)) == {"leftover"}
    assert f"{first.stem}.swap" in names
    # Ablation: without it, a replacement of two by one would look as if a segment overlapped.
    (unclean / P / f"{first.stem}.swap").unlink()
    assert set(kinds(unclean)) == {"leftover"}
    assert second.exists()


def test_a_log_whose_first_segments_were_removed_is_healthy(clean: Path) -> None:
    folder = open_folder(clean)
    log = folder.logs["flights", 0]
    log.advance_log_start(int(segments(clean / P)[3].stem) + 1)
    folder.close(clean=True)
    assert kinds(clean) == []
    # And what is known of the time before comes from the snapshot at its first offset.
    first = segments(clean / P)[0]
    assert first.with_suffix(".snapshot").exists()
    flip(first.with_suffix(".snapshot"), 30)
    assert "snapshot-damaged" in kinds(clean)


def test_the_names_of_compacted_topics_can_be_given(clean: Path) -> None:
    (clean / "state-0" / "log-config").unlink()
    assert "offset-gap" in kinds(clean)
    assert [f.kind for report in look(clean, compacted=frozenset({"state"})) for f in report.findings] == []


def test_idle_producers_may_be_missing_from_snapshots(clean: Path) -> None:
    a_snapshot_without_its_producers(clean)
    assert kinds(clean) == ["snapshot-wrong"]
    assert kinds(clean, now_ms=NOW_MS + 90_000_000) == []


def test_every_kind_is_shown_by_a_test() -> None:
    elsewhere = {
        "unreadable", "transaction-open", "clean-mark-while-running", "identity-differs",
        "directory-id-twice", "partition-twice",
        "future-replica", "displaced-replica", "move-word-damaged",
    }  # fmt: skip
    assert {*CLEAN, *UNCLEAN, *elsewhere} == set(KINDS)
    notes = {kind for kind, about in KINDS.items() if about.severity is Severity.NOTE}
    assert "torn-tail" in notes
    assert "batch-damaged" not in notes


def test_fill_reaches_what_the_tests_damage(clean: Path) -> None:
    assert len(sorted((clean / P).glob("*.txnindex"))) >= 2
    assert len(sorted((clean / P).glob("*.snapshot"))) >= 4
    assert fill.__doc__
