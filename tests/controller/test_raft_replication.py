"""The leader's side of replication, alone: what an answer of a follower makes it send."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from tidegate.controller.raft.messages import AppendReply
from tidegate.controller.raft.replication import Mode, Replication

FOLLOWER, LAST, JOURNAL = 2, 20, 77


class Leader:
    """The state of a voter that leads with entries 1 to LAST, as far as replication reads it."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.sent: list[int] = []
        state: Any = SimpleNamespace(
            log=SimpleNamespace(last_index=LAST, first_index=1),
            others=(FOLLOWER,),
            now=0.0,
            send=lambda follower, frame: self.sent.append(frame),
        )
        self.replication = Replication(state)
        monkeypatch.setattr(self.replication, "_frame", lambda next_index: next_index)
        self.replication.begin()
        self.replication.send_to(FOLLOWER)

    def rejects(self, previous_index: int, next_index: int) -> list[int]:
        """The frames, by the index after which they begin, that a rejection makes the leader send."""
        self.sent.clear()
        self.replication.on_append_reply(
            FOLLOWER, AppendReply(1, False, next_index, previous_index, JOURNAL, True)
        )
        return self.sent


def test_a_rejected_probe_is_followed_at_once_by_one_further_back(monkeypatch: pytest.MonkeyPatch) -> None:
    assert Leader(monkeypatch).rejects(LAST, 11) == [11]


def test_a_journal_that_lost_acknowledged_entries_is_probed_by_heartbeats(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    leader = Leader(monkeypatch)
    progress = leader.replication._progress[FOLLOWER]
    progress.journal, progress.reached, progress.mode = JOURNAL, 15, Mode.REPLICATE
    assert leader.rejects(15, 10) == [], "the leader goes no further back than what was acknowledged"
    assert leader.rejects(15, 10) == []
    leader.replication.send_to(FOLLOWER, heartbeat=True)
    assert leader.sent == [16]
