"""What holds for all tests.

tidegate is imported before anything else can import grpc: the order that `tidegate/__init__.py` asks of every program.  No
property has a deadline: how long an example takes says something about the machine only.  A test that runs a command in this
process sets up logging as that command does; the next test finds it as it was.  A shell starts what runs in its background with
SIGINT ignored, and every process that a test starts would inherit that; a handler is not inherited, so that they get the default.
"""

import logging
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import hypothesis
import pytest
import tidegate

assert tidegate.__version__

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, lambda *_: None)  # ignored by the tests themselves as before

sys.path.append(str(Path(__file__).parent))  # for what several folders share: certificates.py

hypothesis.settings.register_profile("tidegate", deadline=None)
hypothesis.settings.load_profile("tidegate")


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Which seeds the histories and simulations of this run had: each can be repeated."""
    reports = [each for each in terminalreporter.stats.get("passed", []) if each.when == "call"]
    seeds = sorted({line for each in reports for line in each.capstdout.splitlines() if " of seeds " in line})
    if seeds:
        terminalreporter.section("seeds")
        for line in seeds:
            terminalreporter.write_line(line)


@pytest.fixture(autouse=True)
def _logging_as_it_was() -> Iterator[None]:
    root = logging.getLogger()
    level, handlers = root.level, root.handlers[:]
    yield
    root.setLevel(level)
    root.handlers[:] = handlers
