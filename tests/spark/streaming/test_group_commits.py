"""Commits to a group: the newest offsets, a failure logged once and tried with the next micro-batch."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Self

import pytest
from tidegate.client import blocking
from tidegate.runtime.connections.tls import TlsError
from tidegate.security.client_security import ClientSecurity, SecurityError
from tidegate.spark.streaming.group_commits import COMMIT_TIMEOUT_S, GroupCommits, kafka_committer
from tidegate.wire.errors import ErrorCode, KafkaError

KEY = ("flights", 0)


@dataclass
class Coordinator:
    """Stands for the cluster; also the client that a commit enters."""

    committed: list[dict[tuple[str, int], int]] = field(default_factory=list)
    connections: int = 0
    closed: int = 0
    fails: bool = False
    failure: Exception = field(
        default_factory=lambda: KafkaError(ErrorCode.COORDINATOR_NOT_AVAILABLE, "it moves")
    )
    proceed: threading.Event = field(default_factory=threading.Event)
    asked: threading.Event = field(default_factory=threading.Event)

    def __enter__(self) -> Self:
        self.connections += 1
        return self

    def __exit__(self, *error: object) -> None:
        self.closed += 1

    def set_group_offsets(self, group_id: str, offsets: Mapping[tuple[str, int], int]) -> None:
        assert group_id == "etl"
        self.asked.set()
        assert self.proceed.wait(10)
        if self.fails:
            raise self.failure
        self.committed.append(dict(offsets))


def test_while_a_commit_waits_only_the_newest_offsets_are_kept() -> None:
    cluster = Coordinator()
    commits = GroupCommits("etl", lambda: cluster)
    commits.store({KEY: 1})
    assert cluster.asked.wait(10)
    for offset in range(2, 9):
        commits.store({KEY: offset})  # returns at once
    cluster.proceed.set()
    commits.close()
    assert cluster.committed == [{KEY: 1}, {KEY: 8}]
    assert (cluster.connections, cluster.closed) == (1, 1)


def test_the_same_offsets_are_committed_once() -> None:
    cluster = Coordinator()
    cluster.proceed.set()
    commits = GroupCommits("etl", lambda: cluster)
    for _ in range(3):
        commits.store({KEY: 1})
        commits.flush()
    commits.close()
    assert cluster.committed == [{KEY: 1}]


def test_offsets_are_committed_as_they_were_when_they_were_stored() -> None:
    cluster = Coordinator()
    commits, positions = GroupCommits("etl", lambda: cluster), {KEY: 1}
    commits.store(positions)
    positions[KEY] = 2
    cluster.proceed.set()
    commits.close()
    assert cluster.committed == [{KEY: 1}]


def test_a_coordinator_that_does_not_answer_holds_up_nobody_for_long() -> None:
    cluster = Coordinator()
    commits = GroupCommits("etl", lambda: cluster)
    commits.store({KEY: 1})
    assert cluster.asked.wait(10)
    commits.flush(timeout_s=0.01)
    assert commits._thread.is_alive(), "it waits still"
    assert commits._thread.daemon, "and would not keep the process"
    cluster.proceed.set()
    commits.close()
    assert not commits._thread.is_alive()


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_no_caller_waits_for_a_commit_that_ended_by_a_defect() -> None:
    cluster = Coordinator(fails=True, failure=RuntimeError("a defect"))
    cluster.proceed.set()
    commits = GroupCommits("etl", lambda: cluster)
    commits.store({KEY: 1})
    commits._thread.join(10)
    commits.flush(timeout_s=3_600)
    commits.close()
    assert cluster.closed == 1


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_caller_that_waits_already_is_woken_by_a_defect(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = Coordinator(fails=True, failure=RuntimeError("a defect"))
    commits = GroupCommits("etl", lambda: cluster)
    commits.store({KEY: 1})
    assert cluster.asked.wait(10)
    wait_for = commits._changed.wait_for

    def wait(is_done: Callable[[], bool], timeout_s: float) -> bool:
        def look() -> bool:
            found = is_done()
            cluster.proceed.set()  # the commit ends when this caller waits and no longer has the lock
            return found

        return wait_for(look, timeout_s)

    monkeypatch.setattr(commits._changed, "wait_for", wait)
    caller = threading.Thread(target=commits.flush, args=(3_600,), daemon=True)
    caller.start()
    caller.join(10)
    assert not caller.is_alive()
    commits.close()
    assert not commits._thread.is_alive(), "its error belongs to this test"


@pytest.mark.parametrize(
    "failure", [OSError("refused"), SecurityError("no right"), TlsError("no certificate")]
)
def test_a_failure_of_any_kind_is_no_end_of_the_commits(failure: Exception) -> None:
    cluster = Coordinator(fails=True, failure=failure)
    cluster.proceed.set()
    commits = GroupCommits("etl", lambda: cluster)
    commits.store({KEY: 1})
    commits.flush()
    cluster.fails = False
    commits.store({KEY: 2})
    commits.close()
    assert cluster.committed == [{KEY: 2}]


@pytest.mark.filterwarnings("error::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_failure_is_logged_once_and_the_next_micro_batch_tries_again(
    caplog: pytest.LogCaptureFixture,
) -> None:
    cluster = Coordinator(fails=True)
    cluster.proceed.set()
    commits = GroupCommits("etl", lambda: cluster)
    for offset in (1, 2, 3):
        commits.store({KEY: offset})
        commits.flush()
    assert [record.msg for record in caplog.records] == ["offsets_not_committed"]
    cluster.fails = False
    commits.store({KEY: 4})
    commits.flush()
    cluster.fails = True
    commits.store({KEY: 5})
    commits.close()
    assert cluster.committed == [{KEY: 4}]
    assert [record.msg for record in caplog.records] == ["offsets_not_committed"] * 2, (
        "after a success the next failure is news"
    )
    assert (cluster.connections, cluster.closed) == (4, 4), "a new client after each failure, and none left"


def test_a_committer_is_a_client_of_the_listeners_that_were_named(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[tuple[tuple[Any, ...], dict[str, Any]]] = []
    monkeypatch.setattr(blocking, "Admin", lambda *args, **named: made.append((args, named)))
    security = ClientSecurity("SASL_PLAINTEXT", mechanism="PLAIN", username="alice", password="x")
    connect = kafka_committer(("a:9092", "b:9092"), security)
    assert made == []
    connect()
    ((addresses, named),) = made
    assert addresses == ("a:9092,b:9092",)
    assert (named["timeout_s"], named["security"]) == (COMMIT_TIMEOUT_S, security)
