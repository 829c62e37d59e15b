"""The suite's own ground: the same tests on every worker, and the tests of one group on one worker."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from tidegate.tests.machine import SKIP, Need, lacks

from .source_tree import ROOT, project_files

SKIPS = re.compile(r"pytest\.skip|mark\.skip|skipif|importorskip|mark\.xfail|pytest\.xfail|__test__ = False")
TOY = """
import os, pathlib, pytest

pytestmark = pytest.mark.xdist_group("one at a time")

@pytest.mark.parametrize("number", range(8))
def test_toy(number):
    folder = pathlib.Path(os.environ["TOY_FOLDER"])
    (folder / os.environ["PYTEST_XDIST_WORKER"]).touch()
"""


def run_pytest(*arguments: object, before: tuple[str, ...] = (), **environment: str) -> str:
    clean = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST")}
    done = subprocess.run(
        [*before, sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *map(str, arguments)],
        env=clean | environment, capture_output=True, text=True, timeout=100, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    return done.stdout


def test_the_tests_of_one_group_run_on_one_worker(tmp_path: Path) -> None:
    """A cluster of real nodes, or a Spark session, is one group: two at a time are too many for two cores."""
    workers = tmp_path / "workers"
    workers.mkdir()
    toy = tmp_path / "test_toy.py"
    toy.write_text(TOY)
    run_pytest(
        "-n", 2, "--dist", "loadgroup", "--rootdir", tmp_path, "-c", os.devnull, toy, TOY_FOLDER=str(workers)
    )
    assert len(list(workers.iterdir())) == 1


def test_two_workers_collect_the_same_tests() -> None:
    """xdist refuses to start when the names of tests differ, and a name may hold a time, a set's order or a
    memory address."""
    tests = Path(__file__).parent.parent
    first = run_pytest(
        "--collect-only", tests / "wire", tests / "storage", tests / "coordinator", PYTHONHASHSEED="1"
    )
    second = run_pytest(
        "--collect-only", tests / "wire", tests / "storage", tests / "coordinator", PYTHONHASHSEED="2"
    )
    names = [line for line in first.splitlines() if "::" in line]
    assert len(names) > 1000
    assert names == [line for line in second.splitlines() if "::" in line]


def test_what_tests_signal_takes_it_also_in_a_shells_background() -> None:
    """A shell ignores SIGINT in what it starts with `&`, and that is inherited."""
    tests = Path(__file__).parent.parent / "client" / "test_command_line.py"
    run_pytest(tests, "-k", "ctrl_c", before=("sh", "-c", "trap '' INT; exec \"$@\"", "sh"))


def test_a_test_is_skipped_only_for_what_contributing_lists() -> None:
    """A skip that stands anywhere else is one that a reader of a green run does not notice."""
    here = Path(__file__).relative_to(ROOT)
    tests = [path for path in project_files() if path.suffix == ".py" and path.parts[0] in {"tests", "bench"}]
    skipping = {path for path in tests if path != here and SKIPS.search((ROOT / path).read_text())}
    assert skipping == {Path("tests/machine.py")}
    rows = re.findall(r"^\| `([A-Z_]+)` \| (.+?) \|", (ROOT / "CONTRIBUTING.md").read_text(), re.MULTILINE)
    assert rows == [(need.name, need.value) for need in Need]


def test_where_nothing_may_be_skipped_a_missing_need_is_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(SKIP, raising=False)
    with pytest.raises(pytest.skip.Exception, match="kcat is away; this test needs `apt-get install kcat`"):
        lacks(Need.KCAT, "kcat is away")
    monkeypatch.setenv(SKIP, "nothing")
    with pytest.raises(pytest.fail.Exception, match=r"kcat is away.*TIDEGATE_TESTS_SKIP=nothing"):
        lacks(Need.KCAT, "kcat is away")
