"""Which kernel runs: the same answer in each process, and none where there is no Linux."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from tidegate.runtime import kernel_id as module
from tidegate.runtime.kernel_id import kernel_id


def test_two_processes_have_the_same() -> None:
    program = "from tidegate.runtime.kernel_id import kernel_id; print(kernel_id())"
    other = subprocess.run([sys.executable, "-c", program], check=True, stdout=subprocess.PIPE, text=True)
    assert other.stdout.strip() == kernel_id() != ""


def test_another_system_has_none(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(module, "BOOT_ID", tmp_path / "none")
    assert kernel_id.__wrapped__() == ""
    monkeypatch.setattr(module, "BOOT_ID", tmp_path)
    assert kernel_id.__wrapped__() == "", "nor has a process that may not read it"
