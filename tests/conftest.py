"""What holds for all tests.

tidegate is imported before anything else can import grpc: the order that `tidegate/__init__.py` asks of every
program.  No property has a deadline: how long an example takes says something about the machine only.  A test
that runs a command in this process sets up logging as that command does; the next test finds it as it was.  A
shell starts what runs in its background with SIGINT ignored, and every process that a test starts would
inherit that; a handler is not inherited, so that they get the default.  What the collection loads stays to
the end, and the garbage collector does not walk it: that was a tenth of the time, and most of a syntax
tree's.
"""

import gc
import logging
import re
import signal
import sys
from collections.abc import Generator, Iterator
from pathlib import Path

import hypothesis
import pytest
import tidegate

assert tidegate.__version__

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, lambda *_: None)  # ignored by the tests themselves as before

ROOT = Path(__file__).resolve().parents[1]
sys.path.append(str(Path(__file__).parent))  # for what several folders share: certificates.py

hypothesis.settings.register_profile("tidegate", deadline=None)
hypothesis.settings.register_profile("check", deadline=None, max_examples=10)  # `make check`
hypothesis.settings.load_profile("tidegate")


LONG = re.compile(
    # simulators, histories, ablations, fuzz
    r"_simulation(_ablations)?\.py|_histories\.py|test_histories_do_move|test_ablation_|test_no_history_of_moves|test_cleaning_model|test_fuzz|test_damaged_starts|test_mutations"
    r"|test_moves\.py::.*ablated|test_late_heartbeats|test_disturbance|storage/test_counting"
    # real processes, sockets, time, machines
    r"|test_wheel|test_suite|test_network_lab|test_real_faults|test_killed_member|test_local_cluster|client/test_command_line"
    r"|controller/test_(controller_service|metadata_log|plan_pipeline|quorum_tls|ended_terms)|runtime/test_http|test_(reachability|probing)"
    r"|test_all_voters_are_asked|test_the_entries_after_a_snapshot_are_kept|test_the_script_of_a_job_starts|test_foreign_clients|test_tuned_process|test_draining|replication/test_(sessions|trouble)"
    r"|replication/test_(throttled_replicas|moved_replicas|stopping_followers|cleaned_logs|damaged_replicas|record_deletion)"
    # much data, or many combinations
    r"|test_open_files|test_segment_checksums|test_entry_limits|test_record_check|test_journal|test_cleaner_and_loop|test_described_topics"
    r"|storage/test_(replacement|removal|truncation_without_room|rot|compatibility)|test_consumer_assignors"
)
"""Files and tests that take long.  `make check` leaves them out, all but the first seeds of those that take a
seed as their parameter; `make test` runs everything."""
LEFT = "left to do: "
"""A passing test prints such a line for what a release must not have; the run ends with all of them."""
SEED = re.compile(r"\[(\d+)\]$")
SEEDS_OF_A_CHECK = 2
SEEDS_OF_CHUNKS = re.compile(
    r"replication/test_simulation|storage/test_(cleaning_model|counting)|test_fuzz|test_disturbance|_limits"
    r"|test_controller_service|test_late_heartbeats"
)
"""Whose parameter stands for many seeds, or for something else: none of them."""
MANY_CASES = re.compile(r"wire/test_codec")
CASES_OF_A_CHECK = 6
"""Of tests with very many cases one in so many stays."""


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--rewrite-transcripts", action="store_true", help="write what happens into tests/transcripts"
    )
    parser.addoption(
        "--secured", help="WAY: the shared cluster's clients log in (tests/cluster/secured_ways.py)"
    )


def pytest_configure() -> None:
    """After a change of proto/, tests of the modules that were generated before would fail without the
    reason."""
    for schema in (ROOT / "proto").glob("*.proto"):
        generated = schema.with_name(f"{schema.stem}_pb2.py")
        if not generated.exists() or generated.stat().st_mtime < schema.stat().st_mtime:
            pytest.exit(f"{schema.name} is newer than the modules generated from it: run `make proto`", 4)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.set_threshold(50_000, 20, 20)
        gc.enable()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for number, item in enumerate(items):
        if MANY_CASES.search(item.nodeid) and number % CASES_OF_A_CHECK:
            item.add_marker(pytest.mark.long)
        if LONG.search(item.nodeid) is None:
            continue
        seed = None if SEEDS_OF_CHUNKS.search(item.nodeid) else SEED.search(item.nodeid)
        if seed is None or int(seed[1]) >= SEEDS_OF_A_CHECK:
            item.add_marker(pytest.mark.long)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Which seeds the histories and simulations of this run had: each can be repeated.  And what is left to
    do before a release."""
    reports = [each for each in terminalreporter.stats.get("passed", []) if each.when == "call"]
    said = sorted({line for each in reports for line in each.capstdout.splitlines()})
    for title, mark in (("seeds", " of seeds "), ("before a release", LEFT)):
        if lines := [line for line in said if mark in line]:
            terminalreporter.section(title)
            for line in lines:
                terminalreporter.write_line(line)


@pytest.fixture(autouse=True)
def _logging_as_it_was() -> Iterator[None]:
    root = logging.getLogger()
    level, handlers = root.level, root.handlers[:]
    yield
    root.setLevel(level)
    root.handlers[:] = handlers
