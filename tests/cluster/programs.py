"""Programs of foreign clients, at work on the cases of a whole test module or class."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import pytest
from tidegate.processes.local_cluster import LocalCluster
from tidegate.tests.foreign_clients import Broken, Missing, Program
from tidegate.tests.machine import Need, lacks

from .secured_ways import SecuredCluster

CASE_TIMEOUT_S = 90


@contextmanager
def at_work(
    name: str,
    cluster: LocalCluster,
    cases: Sequence[str],
    folders: pytest.TempPathFactory,
) -> Iterator[Program]:
    """One process for all these cases.  Without the client their tests are skipped (tests/machine.py)."""
    environment = cluster.environment_of_programs if isinstance(cluster, SecuredCluster) else None
    try:
        log = folders.mktemp(name) / "program.log"
        program = Program(name, cluster.bootstrap, cases, log, environment)
    except Missing as reason:
        lacks(Need.FOREIGN_CLIENTS, str(reason))
    except Broken as error:
        pytest.fail(str(error))
    yield program
    program.close()


def cases_of_module(request: pytest.FixtureRequest) -> list[str]:
    """Of all tests of the module that were chosen."""
    return sorted({case_of(item) for item in request.session.items if item.module is request.module})  # type: ignore[attr-defined]


def case_of(item: Any) -> str:
    """test_aborted_records_are_never_read -> abortedRecordsAreNeverRead"""
    return re.sub(r"_(\w)", lambda letter: letter[1].upper(), item.originalname.removeprefix("test_"))


def numbered(what: str, count: int) -> list[str]:
    """What the programs call their records."""
    return [f"{what}-{number:03}" for number in range(count)]
