"""What `tidegate status` says of disks: full, nearly full, failed."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import pytest
from tidegate.client.administration.operations import DataFolder, describe_data_folders
from tidegate.client.command_line.disks import condition, in_words, worst
from tidegate.client.connecting.errors import ConnectionFailed
from tidegate.wire.api import ApiKey
from tidegate.wire.errors import ErrorCode

GIB = 1 << 30


@pytest.mark.parametrize(
    ("offline", "total", "usable", "word"),
    [
        (False, 100 * GIB, 50 * GIB, "ok"),
        (False, 100 * GIB, 10 * GIB, "ok"),
        (False, 100 * GIB, 10 * GIB - 1, "nearly full"),
        (False, 100 * GIB, (1 << 20) - 1, "full"),
        (False, 100 * GIB, 0, "full"),
        (True, None, None, "offline"),
        (False, None, None, "ok"),
        (False, 0, 0, "ok"),
    ],
)
def test_the_word_for_a_data_folder(offline: bool, total: int | None, usable: int | None, word: str) -> None:
    """A broker of an earlier version does not know its room: that is not said to be bad."""
    folder = DataFolder(2, "/data", offline, total, usable)
    assert condition(folder) == word
    lines = in_words([folder])
    assert len(lines) == (word != "ok")
    assert all("node 2" in each and "/data" in each and word in each for each in lines)


def test_of_several_folders_the_worst_counts_for_the_broker() -> None:
    roomy, nearly = (
        DataFolder(1, "/a", False, 100 * GIB, 50 * GIB),
        DataFolder(1, "/b", False, 100 * GIB, 2 * GIB),
    )
    failed = DataFolder(1, "/c", True)
    assert (worst([roomy]), worst([roomy, nearly]), worst([failed, nearly, roomy])) == (
        "ok",
        "nearly full",
        "offline",
    )
    assert (
        in_words([roomy, nearly, failed])[0]
        == "node 1: the disk of /b is nearly full: 2 % (2048 MiB) of it can be written"
    )


def test_a_broker_that_tells_of_no_folder_did_not_answer() -> None:
    assert worst([]) == "no answer"


class SlowCluster:
    """Of three brokers: one answers, one is gone, one stands still."""

    view = SimpleNamespace(brokers={1: None, 2: None, 3: None})

    async def refresh(self, topics: object) -> None: ...

    async def ask(self, node_id: int, api_key: ApiKey, fields: object) -> Any:
        assert api_key is ApiKey.DESCRIBE_LOG_DIRS
        if node_id == 2:
            raise ConnectionFailed(ErrorCode.NETWORK_EXCEPTION, "gone")
        if node_id == 3:
            await asyncio.Event().wait()
        return SimpleNamespace(
            results=[SimpleNamespace(log_dir="/a", error_code=0, total_bytes=-1, usable_bytes=-1)]
        )


async def test_a_silent_broker_does_not_delay_the_status_of_the_others() -> None:
    found = await asyncio.wait_for(describe_data_folders(cast(Any, SlowCluster()), 0.05), 10)
    assert found == [DataFolder(1, "/a", False, None, None)]
