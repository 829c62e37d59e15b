"""Members that fall silent while coordinators come and go: removed in bounded time, never while they live,
and a leave is kept.

Each *life* is a new coordinator on the same log.  Live members send what real ones send: a heartbeat every
interval to the present coordinator, none while there is no coordinator, and they follow the answers.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest
from tidegate.coordinator import silence
from tidegate.coordinator.fields import RecordFormatError
from tidegate.coordinator.group.classic.events import LeaveGroup, LeavingMember
from tidegate.coordinator.group.events import DeleteGroup
from tidegate.wire.errors import ErrorCode, KafkaError

from .consumer_group_driver import Consumers, G
from .coordinator_doubles import code_of
from .test_group_membership import Groups

SESSION_MS, BEAT_MS = 45_000, 5_000
GAP_MS = 7_000  # from the death of a coordinator to the election of the next


class ConsumerLives:
    """A consumer group: "live" sends heartbeats, "dead" does not."""

    def __init__(self) -> None:
        self.groups = Consumers()
        self.now_ms = self.groups.now_ms
        self.groups.join("dead")
        self.groups.join("live")
        self.groups.settle("dead", "live")

    def load(self) -> None:
        before = self.groups
        self.groups = Consumers(before.catalog, log=before.log, now_ms=self.now_ms)
        self.tick()

    def tick(self) -> None:
        self.groups.now_ms = self.now_ms
        self.groups.tick()
        self.groups.commit()

    def beat(self) -> None:
        current = self.groups.group.current["live"]
        assert code_of(self.groups.beat("live", current.epoch, owned=current.assigned)) is ErrorCode.NONE

    def members(self) -> set[str]:
        return set(self.groups.group.members)

    def notes(self) -> dict[str, Any]:
        return self.groups.shard.groups.silences.notes.get(G, {})


class ClassicLives:
    """A classic group of two members; the one that lives leads."""

    def __init__(self) -> None:
        self.groups = Groups()
        self.groups.load()
        self.now_ms = self.groups.now_ms
        session: dict[str, Any] = {"session_timeout_ms": SESSION_MS}
        live = self.groups.join("live", **session)
        assert live is not None
        assert live.generation == 1
        self.groups.join("dead", **session)
        self.live = live.member_id
        self.rejoin()
        self.groups.sync("dead", self.dead, 2)
        self.groups.commit()

    @property
    def dead(self) -> str:
        return next(name for name in self.groups.group.members if name != self.live)

    def rejoin(self) -> None:
        reply = self.groups.join("rejoin", self.live, session_timeout_ms=SESSION_MS)
        if reply is not None and not isinstance(reply, KafkaError):
            self.groups.sync("sync", self.live, reply.generation, **{self.live: b"share"})  # type: ignore[arg-type]

    def load(self) -> None:
        log = self.groups.log
        self.groups = Groups(log=log, now_ms=self.now_ms)
        self.groups.load(epoch=log.epochs[0] + 1)
        self.tick()

    def tick(self) -> None:
        self.groups.now_ms = self.now_ms
        self.groups.tick()
        self.groups.commit()

    def beat(self) -> None:
        code = self.groups.beat(self.live, self.groups.group.generation)
        assert code in (ErrorCode.NONE, ErrorCode.REBALANCE_IN_PROGRESS)
        if code is ErrorCode.REBALANCE_IN_PROGRESS:
            self.rejoin()

    def members(self) -> set[str]:
        return {"live" if name == self.live else "dead" for name in self.groups.group.members}

    def notes(self) -> dict[str, Any]:
        return self.groups.shard.groups.silences.notes.get(G, {})


def live_on(lives: Any, lengths_ms: Callable[[], int], for_ms: int, beat_ms: int = BEAT_MS) -> int | None:
    """Runs coordinators of these lengths; returns after how long the dead member was removed."""
    began_ms = last_beat_ms = lives.now_ms
    while lives.now_ms - began_ms < for_ms:
        until_ms = lives.now_ms + lengths_ms()
        while lives.now_ms < until_ms:
            lives.now_ms += 500
            lives.tick()
            if lives.now_ms - last_beat_ms >= beat_ms:
                lives.beat()
                last_beat_ms = lives.now_ms
            assert "live" in lives.members(), "a member that is heard was removed"
            if "dead" not in lives.members():
                return int(lives.now_ms - began_ms)
        lives.now_ms += GAP_MS
        lives.load()
    return None


@pytest.mark.parametrize("lives", [ConsumerLives, ClassicLives])
@pytest.mark.parametrize("kills_every_ms", [60_000, 24_000])
def test_a_dead_member_goes_however_often_the_coordinator_moves(
    lives: Callable[[], Any], kills_every_ms: int
) -> None:
    gone_ms = live_on(lives(), lambda: kills_every_ms - GAP_MS, 600_000)
    assert gone_ms is not None
    assert SESSION_MS <= gone_ms <= 2 * SESSION_MS


@pytest.mark.parametrize("lives", [ConsumerLives, ClassicLives])
def test_without_notes_it_would_stay_as_long_as_coordinators_move(
    lives: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(silence, "GRACE_PERIODS_MISSED_MAX", 10**6)
    assert live_on(lives(), lambda: 17_000, 600_000) is None


@pytest.mark.parametrize("lives", [ConsumerLives, ClassicLives])
@pytest.mark.parametrize("seed", range(12))
def test_no_order_of_coordinators_removes_a_member_that_sends_heartbeats(lives: Any, seed: int) -> None:
    """`live_on` asserts it at each step; lives are too short for a heartbeat, or long, in any order."""
    chance = random.Random(seed)
    # a classic member's interval is its own choice
    beat_ms = SESSION_MS // 3 if lives is ClassicLives and seed % 2 else BEAT_MS
    live_on(
        lives(), lambda: chance.choice([500, 1_500, 4_000, 9_000, 12_000, 17_000, 30_000]), 300_000, beat_ms
    )


@pytest.mark.parametrize("lives", [ConsumerLives, ClassicLives])
def test_the_next_heartbeat_of_a_silent_member_removes_its_note(lives: Any) -> None:
    found = lives()
    found.now_ms += GAP_MS
    found.load()
    found.now_ms += 20_000
    found.tick()
    assert {note.missed for note in found.notes().values()} == {1}
    assert len(found.notes()) == 2
    found.beat()
    assert len(found.notes()) == 1, "only the one that is silent still"
    found.load()
    found.beat()
    found.now_ms += 20_000
    found.tick()
    assert [note.missed for note in found.notes().values()] == [2]


def test_live_members_cost_no_record() -> None:
    lives = ConsumerLives()
    lives.now_ms += GAP_MS
    lives.load()
    for member_id in ("live", "dead"):
        lives.groups.beat(member_id, lives.groups.group.current[member_id].epoch)
    lives.now_ms += 30_000
    lives.tick()
    assert lives.groups.runtime.metrics_of(0).records_written == 0


def test_a_note_whose_append_fails_is_written_later() -> None:
    lives = ConsumerLives()
    lives.load()
    lives.groups.log.refuse = KafkaError(ErrorCode.NOT_ENOUGH_REPLICAS, "no")
    lives.now_ms += 11_000
    lives.tick()
    assert lives.notes() == {}
    lives.groups.log.refuse = None
    lives.now_ms += silence.RETRY_MS
    lives.tick()
    assert set(lives.notes()) == {"live", "dead"}


def test_a_leave_that_was_answered_is_kept_by_the_next_coordinator() -> None:
    """The stored generation still has the member; the next coordinator lets the others rebalance at once."""
    lives = ClassicLives()
    dead = lives.dead
    lives.groups.submit("leave", LeaveGroup(G, (LeavingMember(dead),)))
    assert "leave" not in lives.groups.replies, "it is answered when it is committed"
    lives.groups.commit()
    assert lives.groups.replies["leave"].results[0][1] is ErrorCode.NONE
    lives.load()
    lives.groups.commit()
    assert lives.members() == {"live"}
    assert lives.groups.state.value == "PreparingRebalance"
    assert lives.groups.beat(lives.live, 2) is ErrorCode.REBALANCE_IN_PROGRESS
    lives.rejoin()
    assert lives.groups.state.value == "Stable"
    assert lives.groups.group.generation == 3
    assert lives.notes() == {}


def test_without_its_note_a_leave_is_lost_with_its_coordinator(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(silence.Silences, "left", lambda *_: [])
    lives = ClassicLives()
    assert code_of(lives.groups.ask(LeaveGroup(G, (LeavingMember(lives.dead),)))) is ErrorCode.NONE
    lives.load()
    assert lives.members() == {"live", "dead"}


def test_when_all_have_left_under_the_last_coordinator_the_group_is_empty() -> None:
    lives = ClassicLives()
    assert (
        code_of(lives.groups.ask(LeaveGroup(G, (LeavingMember(lives.dead), LeavingMember(lives.live)))))
        is ErrorCode.NONE
    )
    lives.load()
    assert lives.groups.state.value == "Empty"
    assert lives.notes() == {}
    assert code_of(lives.groups.ask(DeleteGroup(G))) is ErrorCode.NONE


@pytest.mark.parametrize("lives", [ConsumerLives, ClassicLives])
def test_notes_go_with_their_member_and_their_group(lives: Any) -> None:
    found = lives()
    found.load()
    for _ in range(3):
        found.now_ms += SESSION_MS
        found.tick()
    assert found.members() == set()
    assert found.notes() == {}


def test_a_coordinator_of_an_older_version_skips_notes() -> None:
    """It knows keys up to 8: a key of another version is none of its kinds."""
    key = silence.encode_key(G, "m")
    assert int.from_bytes(key[:2], "big") == silence.KEY_VERSION > 8
    assert silence.decode_key(key) == (G, "m")
    note = silence.Note(5, 1)
    assert silence.decode_value(silence.encode_value(note)) == note
    with pytest.raises(RecordFormatError, match="later release"):
        silence.decode_value(b"\0\1" + bytes(11))


def test_notes_of_members_with_long_names_fit_into_the_logs_batches() -> None:
    silences, name = silence.Silences(), "g" * 1_500
    for number in range(900):
        silences.begin_grace_period(name, f"m{number}", 10, 100, 0)
    noted, batches = set[str](), 0
    while silences.is_due(50):
        written = silences.on_timer(50, lambda _group, _member: True)
        assert sum(len(record.key) + len(record.value or b"") + 24 for record in written) < 600_000
        for record in written:
            key = silence.decode_key(record.key)
            assert key is not None
            silences.replay(key, record.value)
            noted.add(key.member_id)
        batches += 1
    assert len(noted) == 900
    assert batches == 3


@pytest.mark.parametrize("behind_ms", [0, 10 * SESSION_MS])
def test_a_clock_behind_shortens_a_session_to_three_grace_periods_at_least(behind_ms: int) -> None:
    """What the module promises of a member that two coordinators missed already; one missed less has its
    whole session."""
    silences, now_ms, grace_ms = silence.Silences(), 1_000_000, 6_000
    key, since_ms = silence.NoteKey(G, "m"), now_ms - 2 * grace_ms - behind_ms
    assert silences.begin_grace_period(G, "m", grace_ms, SESSION_MS, now_ms) == now_ms + SESSION_MS
    silences.replay(key, silence.encode_value(silence.Note(since_ms, silence.GRACE_PERIODS_MISSED_MAX - 1)))
    assert silences.begin_grace_period(G, "m", grace_ms, SESSION_MS, now_ms) == now_ms + SESSION_MS
    silences.replay(key, silence.encode_value(silence.Note(since_ms, silence.GRACE_PERIODS_MISSED_MAX)))
    until_ms = silences.begin_grace_period(G, "m", grace_ms, SESSION_MS, now_ms)
    assert until_ms == (now_ms + grace_ms if behind_ms else since_ms + SESSION_MS)
