"""What holds for all tests.

tidegate is imported before anything else can import grpc: the order that `tidegate/__init__.py` asks of every program.  No
property has a deadline: how long an example takes says something about the machine only.  A test that runs a command in this
process sets up logging as that command does; the next test finds it as it was.  A shell starts what runs in its background with
SIGINT ignored, and every process that a test starts would inherit that; a handler is not inherited, so that they get the default.
"""

import logging
import re
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


LONG = re.compile(
    r"_simulation|_histories|_ablations|test_cleaning_model|test_fuzz|test_damaged_starts|test_moves\.py::.*ablated"
    r"|test_ablation_|test_wheel|test_suite|test_network_lab|test_real_faults|test_mutations|test_killed_member"
)
"""Files and tests that take long: simulators, histories, ablations, wheels.  `make check` leaves them out, all but the first
seeds of those that take a seed as their parameter; `make test` runs everything."""
SEED = re.compile(r"\[(\d+)\]$")
SEEDS_OF_A_CHECK = 3


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        seed = SEED.search(item.nodeid)
        if LONG.search(item.nodeid) and not (seed and int(seed[1]) < SEEDS_OF_A_CHECK):
            item.add_marker(pytest.mark.long)


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
