"""DescribeLogDirs: the room of each data folder's volume, as far as it is known (KIP-827)."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

from tidegate.node.handlers.cluster import describe_log_dirs
from tidegate.node.upkeep.disk_reserve import DiskReserves
from tidegate.runtime.disk import RealDisk
from tidegate.tests.permissions import ALL_ALLOWED
from tidegate.wire.errors import ErrorCode


class Volumes(RealDisk):
    """One that works, one that does not say how large it is, one that must not be asked."""

    def free_bytes(self, directory: Path) -> int:
        if directory.name == "silent":
            raise OSError(5, "no answer")
        assert directory.name == "works", "a failed disk may never answer"
        return 3

    def total_bytes(self, directory: Path) -> int:
        assert directory.name != "failed"
        return 7


async def test_every_folder_tells_its_own_room_and_a_failed_one_is_not_asked(tmp_path: Path) -> None:
    folders = tuple(tmp_path / name for name in ("works", "silent", "failed"))
    broker = SimpleNamespace(
        configuration=SimpleNamespace(data_dirs=folders),
        permissions=ALL_ALLOWED,
        replicas=SimpleNamespace(hosted=()),
        directory=SimpleNamespace(offline_folders=[folders[2]], futures={}),
        reserves=DiskReserves(Volumes(), folders, 0),
    )
    answer: Any = await describe_log_dirs.handle(
        cast(Any, broker), cast(Any, None), cast(Any, SimpleNamespace(topics=None))
    )
    described = [
        (each["error_code"], each["log_dir"], each["total_bytes"], each["usable_bytes"])
        for each in answer["results"]
    ]
    assert described == [
        (ErrorCode.NONE, str(folders[0]), 7, 3),
        (ErrorCode.NONE, str(folders[1]), -1, -1),
        (ErrorCode.KAFKA_STORAGE_ERROR, str(folders[2]), -1, -1),
    ]
