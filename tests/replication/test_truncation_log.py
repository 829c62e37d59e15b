"""The log at WARNING tells of committed records that a follower cut off, and of nothing that happens after
every election."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest
from tidegate.replication.fetching.fetcher import LeaderFetcher


@pytest.mark.parametrize(("offset", "level"), [(7, ["WARNING"]), (8, ["INFO"]), (9, ["INFO"]), (10, [])])
def test_a_truncation_is_a_warning_only_where_committed_records_are_cut(
    caplog: pytest.LogCaptureFixture, offset: int, level: list[str]
) -> None:
    caplog.set_level("INFO")
    replica = SimpleNamespace(
        topic="t", partition=0, leader_epoch=2, log=SimpleNamespace(log_end_offset=10, high_watermark=8)
    )
    part = SimpleNamespace(diverging_epoch=None, error=SimpleNamespace(name="NONE"))
    LeaderFetcher._log_truncation(
        cast(Any, SimpleNamespace(leader_id=1)), cast(Any, replica), offset, cast(Any, part)
    )
    assert [record.levelname for record in caplog.records if record.msg == "log_truncated"] == level
