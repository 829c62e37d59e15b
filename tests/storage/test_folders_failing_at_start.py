"""A data folder whose disk fails when the node starts takes only its own partitions down, and none of them is
made anew."""

from __future__ import annotations

import errno
from collections.abc import Iterable
from pathlib import Path
from uuid import UUID

import pytest
from tidegate.chaos.sim.disk import LyingDisk
from tidegate.chaos.sim.mounts import Mounts
from tidegate.storage.directory.creation import NewLog
from tidegate.storage.directory.log_directory import META_PROPERTIES, DirectoryRefused
from tidegate.storage.folders.data_folders import DataFolders
from tidegate.storage.log.log import LogConfig
from tidegate.wire.errors import ErrorCode, KafkaError

from .workload import NOW_MS, append, batch, stored

A, B = Path("/a/data"), Path("/b/data")
ID = UUID(int=1)


class FailingDisk(LyingDisk):
    """`fails` names methods that meet a broken disk."""

    fails: frozenset[str] = frozenset()

    def __getattribute__(self, name: str) -> object:
        if name in object.__getattribute__(self, "fails"):
            raise OSError(errno.EIO, "input/output error", name)
        return object.__getattribute__(self, name)


EVERYTHING = frozenset(
    {"list_names", "read", "exists", "make_directory", "lock", "open", "write_atomic", "size"}
)


def two_disks() -> tuple[Mounts, FailingDisk, FailingDisk]:
    a, b = FailingDisk(), FailingDisk()
    return Mounts({Path("/a"): a, Path("/b"): b}), a, b


def opened(disks: Mounts, *, essential: tuple[Path, str] | None = None, fresh: str = "id") -> DataFolders:
    numbers = iter(range(100))
    folders = DataFolders(disks, (A, B), "c", 1, lambda: f"{fresh}-{next(numbers)}", essential=essential)
    folders.open_all(now_ms=NOW_MS)
    return folders


def written(disks: Mounts, partitions: Iterable[int] = range(4)) -> str:
    """Partitions 0 and 2 are in A, 1 and 3 in B."""
    folders = opened(disks)
    for partition in partitions:
        append(folders.create("t", ID, partition, LogConfig(), now_ms=NOW_MS), batch(1 + partition))
    folders.close(clean=True, broker_epoch=4)
    disks.kill()
    return folders.directory_id


ASSIGNED = [("t", partition) for partition in range(4)]


@pytest.mark.parametrize(
    "fails", [EVERYTHING, {"list_names"}, {"read"}, {"lock"}, {"make_directory"}], ids=len
)
def test_only_its_partitions_are_down_and_none_of_them_is_made_anew(fails: frozenset[str]) -> None:
    disks, _a, b = two_disks()
    identity = written(disks)
    b.fails = frozenset(fails)
    folders = opened(disks, fresh="new")
    folders.expect(ASSIGNED)
    assert folders.offline_folders == [B]
    assert not folders.is_offline
    assert sorted(folders.logs) == [("t", 0), ("t", 2)]
    assert len(stored(folders.logs["t", 2])) == 1
    for lost in (1, 3):
        with pytest.raises(KafkaError) as refused:
            folders.create("t", ID, lost, LogConfig(), now_ms=NOW_MS)
        assert refused.value.code is ErrorCode.KAFKA_STORAGE_ERROR
        assert str(B) in refused.value.message
        # nor of a topic that has its name now: the old log will be there again
        with pytest.raises(KafkaError):
            folders.create("t", UUID(int=2), lost, LogConfig(), now_ms=NOW_MS)
    many = folders.begin_creation(
        [NewLog("t", ID, partition, LogConfig()) for partition in (1, 3)], now_ms=NOW_MS
    )
    many.run()
    assert all(isinstance(each, KafkaError) and str(B) in str(each) for each in many.finish().values())
    assert len(folders.logs) == 2
    append(folders.create("new", ID, 0, LogConfig(), now_ms=NOW_MS), batch(1))
    assert folders.folder_of("new", 0) is folders.folders[0]
    assert folders.previous_broker_epoch is None, "not a replaced disk, and not a clean stop"
    assert folders.directory_id == identity, "not a replaced disk, and not a clean stop"
    folders.write_checkpoints()
    with pytest.raises((KafkaError, OSError)):
        folders.close(clean=True, broker_epoch=5)
    disks.kill()

    b.fails = frozenset()
    again = opened(disks, fresh="newer")
    assert sorted(again.logs) == [("new", 0), *ASSIGNED]
    assert again.directory_id == identity
    assert [again.logs["t", partition].log_end_offset for partition in range(4)] == [1, 2, 3, 4]


def test_ablation_without_the_metadatas_list_a_lost_log_gets_an_empty_twin() -> None:
    disks, _a, b = two_disks()
    written(disks)
    b.fails = EVERYTHING
    folders = opened(disks)
    # two records would seem lost
    assert folders.create("t", ID, 1, LogConfig(), now_ms=NOW_MS).log_end_offset == 0
    folders.close(clean=False)
    disks.kill()
    b.fails = frozenset()
    with pytest.raises(DirectoryRefused, match="t-1"):
        opened(disks)


def test_a_foreign_folder_is_refused_however_many_others_there_are() -> None:
    disks, _a, b = two_disks()
    written(disks)
    b.write_atomic(B / META_PROPERTIES, b"version=1\ncluster.id=another\nnode.id=1\n")
    with pytest.raises(DirectoryRefused, match="another"):
        opened(disks)
    disks.kill()
    b.remove(B / META_PROPERTIES)
    with pytest.raises(DirectoryRefused, match="whose is it"):
        opened(disks)


def test_without_any_folder_there_is_no_start() -> None:
    disks, a, b = two_disks()
    written(disks)
    a.fails = b.fails = EVERYTHING
    with pytest.raises(OSError, match="input/output error"):
        opened(disks)
    a.fails = b.fails = frozenset()
    assert len(opened(disks).logs) == 4


def test_a_node_without_the_quorums_folder_does_not_start_and_says_why() -> None:
    disks, a, b = two_disks()
    written(disks)
    a.fails = EVERYTHING
    with pytest.raises(
        DirectoryRefused, match=r"/a/data fails .*it is the quorum's.*cannot start without it"
    ):
        opened(disks, essential=(A, "it is the quorum's"))
    a.fails, b.fails = frozenset(), EVERYTHING
    assert sorted(opened(disks, essential=(A, "it is the quorum's")).logs) == [("t", 0), ("t", 2)]


def test_a_failed_disk_that_comes_back_empty_counts_as_replaced() -> None:
    disks, _a, b = two_disks()
    identity = written(disks)
    b.fails = EVERYTHING
    opened(disks).close(clean=False)
    disks.kill()
    b.fails = frozenset()
    b.remove_tree(B)
    assert opened(disks, fresh="new").directory_id != identity
