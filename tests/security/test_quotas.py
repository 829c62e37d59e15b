"""Client quotas: which of the entities decides, who shares a limit, and how long a client pauses."""

from __future__ import annotations

import pytest
from tidegate.security.quotas import BUCKETS_MAX, ClientQuotas, QuotaEntity, QuotaKind

PRODUCE = QuotaKind.PRODUCE
PRECEDENCE: list[dict[str, str | None]] = [
    {"client-id": None},
    {"client-id": "app"},
    {"user": None},
    {"user": None, "client-id": None},
    {"user": None, "client-id": "app"},
    {"user": "alice"},
    {"user": "alice", "client-id": None},
    {"user": "alice", "client-id": "app"},
]
"""From the weakest to the strongest."""


def with_limits(*limits: tuple[dict[str, str | None], float]) -> ClientQuotas:
    quotas = ClientQuotas()
    for parts, limit in limits:
        quotas.set_limit(PRODUCE, QuotaEntity.of(parts), limit)
    return quotas


def test_the_most_specific_entity_decides() -> None:
    quotas = ClientQuotas()
    for rank, parts in enumerate(PRECEDENCE, start=1):
        quotas.set_limit(PRODUCE, QuotaEntity.of(parts), rank)
        found = quotas.limit(PRODUCE, "alice", "app")
        assert found
        assert found[0] == rank
    for rank, parts in reversed(list(enumerate(PRECEDENCE, start=1))):
        found = quotas.limit(PRODUCE, "alice", "app")
        assert found
        assert found[0] == rank
        quotas.set_limit(PRODUCE, QuotaEntity.of(parts), None)
    assert quotas.limit(PRODUCE, "alice", "app") is None
    assert quotas.charge(PRODUCE, "alice", "app", 1e9, 0.0) == 0.0


@pytest.mark.parametrize(
    ("parts", "shared_with", "apart_from"),
    [
        ({"user": "alice"}, ("alice", "other"), None),
        ({"user": None}, ("alice", "other"), ("bob", "app")),
        ({"user": "alice", "client-id": None}, None, ("alice", "other")),
        ({"user": None, "client-id": None}, None, ("bob", "app")),
        ({"client-id": "app"}, ("bob", "app"), None),
        ({"client-id": None}, ("bob", "app"), ("alice", "other")),
    ],
)
def test_clients_share_a_limit_as_its_entity_says(
    parts: dict[str, str | None], shared_with: tuple[str, str] | None, apart_from: tuple[str, str] | None
) -> None:
    quotas = with_limits((parts, 10.0))
    assert quotas.charge(PRODUCE, "alice", "app", 10, 0.0) == 0.0
    if shared_with:
        assert quotas.charge(PRODUCE, *shared_with, 10, 0.0) == pytest.approx(1.0)
    if apart_from:
        assert quotas.charge(PRODUCE, *apart_from, 10, 0.0) == 0.0


def test_a_client_that_pauses_as_it_is_asked_keeps_its_rate() -> None:
    quotas = with_limits(({"user": "alice"}, 1000.0))
    now_s = sent = 0.0
    while now_s < 60.0:
        sent += 730
        now_s += 0.001 + quotas.charge(PRODUCE, "alice", "app", 730, now_s)
    assert sent / now_s == pytest.approx(1000, rel=0.05)


def test_a_client_below_its_rate_never_pauses() -> None:
    quotas = with_limits(({"user": "alice"}, 1000.0))
    assert all(quotas.charge(PRODUCE, "alice", "", 99, second / 10) == 0.0 for second in range(600))


def test_a_changed_limit_holds_at_once() -> None:
    quotas = with_limits(({"user": "alice"}, 1000.0))
    assert quotas.charge(PRODUCE, "alice", "", 3000, 0.0) == pytest.approx(2.0)
    quotas.set_limit(PRODUCE, QuotaEntity.of({"user": "alice"}), 100.0)
    assert quotas.charge(PRODUCE, "alice", "", 0, 0.0) == pytest.approx(20.0)
    quotas.set_limit(PRODUCE, QuotaEntity.of({"user": "alice"}), None)
    assert quotas.charge(PRODUCE, "alice", "", 3000, 0.0) == 0.0


def test_kinds_do_not_disturb_each_other() -> None:
    quotas = with_limits(({"user": "alice"}, 1.0))
    assert quotas.charge(QuotaKind.FETCH, "alice", "", 1e9, 0.0) == 0.0


def test_connections_of_an_address() -> None:
    quotas = ClientQuotas()
    assert quotas.charge_address("10.0.0.1", 0.0) == 0.0
    quotas.set_limit(QuotaKind.CONNECTION, QuotaEntity.of({"ip": None}), 2)
    quotas.set_limit(QuotaKind.CONNECTION, QuotaEntity.of({"ip": "10.0.0.2"}), 4)
    assert [quotas.charge_address("10.0.0.1", 0.0) for _ in range(4)] == [0.0, 0.0, 0.5, 1.0]
    assert [quotas.charge_address("10.0.0.2", 0.0) for _ in range(6)] == [0.0, 0.0, 0.0, 0.0, 0.25, 0.5]
    assert quotas.charge_address("10.0.0.3", 0.0) == 0.0


def test_buckets_are_bounded() -> None:
    quotas = with_limits(({"client-id": None}, 1.0))
    for number in range(BUCKETS_MAX + 5):
        quotas.charge(PRODUCE, "", f"client-{number}", 1, 0.0)
    assert quotas.charge(PRODUCE, "", f"client-{BUCKETS_MAX}", 1, 0.0) > 0
    assert quotas.charge(PRODUCE, "", "client-0", 1, 0.0) == 0.0, (
        "the one that was idle for longest is forgotten"
    )


@pytest.mark.parametrize(
    ("parts", "message"),
    [
        ({}, "empty client quota entity"),
        ({"host": "a"}, "Unhandled client quota entity type: host"),
        ({"ip": "10.0.0.1", "user": "alice"}, "Invalid quota entity combination"),
        ({"user": ""}, "Empty client quota entity name"),
    ],
)
def test_entities_that_kafka_does_not_have_are_refused(parts: dict[str, str | None], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        QuotaEntity.of(parts)


@pytest.mark.parametrize("limit", [0, -1, float("nan")])
def test_a_limit_is_above_zero(limit: float) -> None:
    with pytest.raises(ValueError, match="must be greater than 0"):
        with_limits(({"user": "alice"}, limit))
