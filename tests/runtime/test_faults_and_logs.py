"""Fault points do nothing unless armed on purpose; log lines are for people and for machines."""

from __future__ import annotations

import errno
import json
import logging
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from tidegate.runtime import faults, logs
from tidegate.runtime.disk import RealDisk


@pytest.fixture
def kills(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    sent: list[int] = []
    monkeypatch.setattr(faults, "ENABLED", True)
    monkeypatch.setattr(faults, "_kill", lambda pid, number: sent.append(number))
    yield sent
    faults._armed.clear()


def test_a_point_that_is_not_armed_does_nothing(kills: list[int]) -> None:
    faults.point("commit")
    faults.arm("other", "kill")
    faults.point("commit")
    assert kills == []


def test_a_fault_point_kills_after_its_skips_where_the_context_matches(kills: list[int]) -> None:
    faults.arm("commit", "kill", skip=1, match={"partition": "3"})
    for partition in (3, 5, 5):
        faults.point("commit", partition=partition)
    assert kills == []
    faults.point("commit", partition=3)
    assert kills == [signal.SIGKILL]


def test_a_failing_point_fails_below_its_folder_until_it_is_disarmed(
    kills: list[int], tmp_path: Path
) -> None:
    disk = RealDisk()
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    sick, well = (disk.open(tmp_path / name / "file", create=True) for name in "ab")
    faults.arm("disk.sync", "fail", match={"path": f"{tmp_path}/a*"})
    for _ in range(2):
        for attempt in (
            sick.sync_data,
            lambda: disk.sync_directory(tmp_path / "a"),
            lambda: disk.write_atomic(tmp_path / "a" / "other", b"x"),
        ):
            with pytest.raises(OSError, match="Input/output error") as raised:
                attempt()
            assert raised.value.errno == errno.EIO
    assert not (tmp_path / "a" / "other").exists()
    well.sync_data()
    disk.sync_directory(tmp_path / "b")
    disk.write_atomic(tmp_path / "b" / "other", b"x")
    faults.arm("disk.sync", "disarm")
    sick.sync_data()
    assert kills == []


def test_points_cannot_be_armed_in_production(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(faults, "ENABLED", False)
    with pytest.raises(PermissionError, match="TIDEGATE_FAULT_POINTS=1"):
        faults.arm("commit", "kill")


def test_an_unknown_action_is_refused(kills: list[int]) -> None:
    with pytest.raises(ValueError, match="explode"):
        faults.arm("commit", "explode")


@pytest.mark.parametrize(("enabled", "code"), [("1", -signal.SIGKILL), ("0", 7)])
def test_the_environment_decides_and_the_kill_is_real(enabled: str, code: int) -> None:
    script = (
        "from tidegate.runtime import faults\n"
        "try: faults.arm('p', 'kill')\n"
        "except PermissionError: raise SystemExit(7)\n"
        "faults.point('p')\n"
    )
    done = subprocess.run([sys.executable, "-c", script], env={"TIDEGATE_FAULT_POINTS": enabled}, timeout=60)
    assert done.returncode == code


def record_of(**fields: object) -> logging.LogRecord:
    record = logging.LogRecord(
        "tidegate.storage.log.log", logging.WARNING, "f.py", 1, "segment_rolled", (), None
    )
    record.fields = fields
    return record


def test_a_text_line_has_the_event_and_its_values_quoted_only_where_needed() -> None:
    line = logs.TextFormatter().format(
        record_of(topic="flights", partition=3, reason='disk "full"', empty="")
    )
    assert line.endswith(
        'WARNING storage.log.log segment_rolled topic=flights partition=3 reason="disk \\"full\\"" empty=""'
    )


@pytest.mark.parametrize("separator", ["\n", "\r", "\x0b", "\x1b[2K", "\x85", "\u2028"])
def test_a_value_cannot_break_the_line(separator: str) -> None:
    line = logs.TextFormatter().format(record_of(reason=f"two{separator}lines"))
    assert separator not in line
    assert len(line.splitlines()) == 1


def test_a_json_line_is_one_object() -> None:
    line = json.loads(logs.JsonFormatter().format(record_of(partition=3, path=logging)))
    assert (line["level"], line["logger"]) == ("WARNING", "tidegate.storage.log.log")
    assert (line["event"], line["partition"]) == ("segment_rolled", 3)


def test_the_logger_passes_event_and_fields_and_the_traceback(caplog: pytest.LogCaptureFixture) -> None:
    log = logs.get("tidegate.test")
    with caplog.at_level(logging.INFO):
        log.debug("too_quiet")
        log.info("said", n=1)
        try:
            raise RuntimeError("boom")
        except RuntimeError:
            log.exception("failed", n=2)
    assert [(r.msg, r.fields) for r in caplog.records] == [("said", {"n": 1}), ("failed", {"n": 2})]  # type: ignore[attr-defined]
    assert "boom" in logs.JsonFormatter().format(caplog.records[1])
    assert "boom" in logs.TextFormatter().format(caplog.records[1])


def test_a_program_that_logs_in_its_own_way_sees_the_fields_once(caplog: pytest.LogCaptureFixture) -> None:
    logs.get("tidegate.test").warning("no_answer_yet", reason="100 % down", left_s=5)
    (record,) = caplog.records
    assert logging.Formatter("%(message)s").format(record) == 'no_answer_yet reason="100 % down" left_s=5'
    assert logs.TextFormatter().format(record).endswith(' no_answer_yet reason="100 % down" left_s=5')
    assert json.loads(logs.JsonFormatter().format(record))["event"] == "no_answer_yet"


def test_configuring_sets_level_and_form_once(monkeypatch: pytest.MonkeyPatch) -> None:
    root = logging.getLogger()
    monkeypatch.setattr(root, "handlers", [])
    level = root.level
    try:
        logs.configure(level="warning", json_lines=True)
        logs.configure(level="warning", json_lines=True)
        assert root.level == logging.WARNING
        assert len(root.handlers) == 1
        assert isinstance(root.handlers[0].formatter, logs.JsonFormatter)
    finally:
        root.setLevel(level)


def test_a_logger_has_its_own_level_or_that_of_what_stands_above_it() -> None:
    module = logging.getLogger("tidegate.test.levels.module")
    before = logs.logger_levels()
    assert {"root", "tidegate.test.levels", "tidegate.test.levels.module"} <= before.keys()
    logs.set_level("tidegate.test.levels", "TRACE")
    try:
        assert logs.logger_levels()["tidegate.test.levels.module"] == "TRACE"
        assert module.isEnabledFor(logging.DEBUG)
        logs.set_level("tidegate.test.levels.module", "FATAL")
        assert not module.isEnabledFor(logging.ERROR)
        logs.set_level("tidegate.test.levels.module", None)
        assert module.isEnabledFor(logging.DEBUG)
    finally:
        logs.set_level("tidegate.test.levels", None)
    assert logs.logger_levels() == before


def test_every_level_is_shown_by_the_name_it_was_set_by() -> None:
    shown = []
    for level in logs.LEVELS:
        logs.set_level("tidegate.test.levels", level)
        shown.append(logs.logger_levels()["tidegate.test.levels"])
    logs.set_level("tidegate.test.levels", None)
    assert tuple(shown) == logs.LEVELS
