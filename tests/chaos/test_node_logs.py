"""What is counted of the nodes' logs after a run."""

from __future__ import annotations

from pathlib import Path

import pytest
from tidegate.chaos.run import node_logs

LINES = """\
2026-01-02T03:04:05.678+00:00 INFO    node.node node_ready node=1 kafka=127.0.0.1:9092
2026-01-02T03:04:06.678+00:00 WARNING storage.health log_offline log=t-0 reason="a WARNING of old"
2026-01-02T03:04:06.679+00:00 ERROR   node.node node_fail_stop
Traceback (most recent call last):
  File "x.py", line 3, in INFO
ValueError: a line with WARNING in it
2026-01-02T03:04:07.678+00:00 INFO    node.node node_ready node=1
"""


def test_lines_are_counted_by_level_and_event_and_tracebacks_are_not(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "node-1" / "node.log"
    path.parent.mkdir()
    path.write_text(LINES)
    counted = node_logs.count_logs([path, tmp_path / "node-2" / "node.log"])
    assert counted == {
        ("INFO", "node_ready"): 2,
        ("WARNING", "log_offline"): 1,
        ("ERROR", "node_fail_stop"): 1,
    }
    assert node_logs.loud(counted).total() == 2
    node_logs.main([str(tmp_path)])
    said = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert [words[2] for words in said[:3]] == ["node_fail_stop", "log_offline", "node_ready"]
    assert said[3][0] == "4"
