"""Client quotas: which of the entities decides, who shares a limit, and how long a client pauses."""

from __future__ import annotations

import pytest
from tidegate.security.quotas import (
    BUCKETS_MAX,
    FOUND_MAX,
    NAME_CHARACTERS_MAX,
    ClientQuotas,
    QuotaEntity,
    QuotaKind,
    QuotaWindow,
)

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


def with_limits(
    *limits: tuple[dict[str, str | None], float], kind: QuotaKind = PRODUCE, pause_s_max: float = 1e9
) -> ClientQuotas:
    quotas = ClientQuotas(QuotaWindow(1.0, int(pause_s_max)))
    quotas.set_limits({(QuotaEntity.of(parts), kind): limit for parts, limit in limits})
    return quotas


def test_the_most_specific_entity_decides() -> None:
    quotas = ClientQuotas()
    limits = {(QuotaEntity.of(parts), PRODUCE): float(rank) for rank, parts in enumerate(PRECEDENCE, start=1)}
    while limits:
        quotas.set_limits(dict(limits))
        found = quotas.limit(PRODUCE, "alice", "app")
        assert found
        assert found[0] == len(limits)
        limits.popitem()
    quotas.set_limits({})
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
    quotas.set_limits({(QuotaEntity.of({"user": "alice"}), PRODUCE): 100.0})
    assert quotas.charge(PRODUCE, "alice", "", 0, 0.0) == pytest.approx(20.0)
    quotas.set_limits({})
    assert quotas.charge(PRODUCE, "alice", "", 3000, 0.0) == 0.0


def test_a_lower_limit_leaves_nothing_of_the_higher_one() -> None:
    quotas = with_limits(({"user": "alice"}, 1000.0))
    assert quotas.charge(PRODUCE, "alice", "", 1, 0.0) == 0.0
    quotas.set_limits({(QuotaEntity.of({"user": "alice"}), PRODUCE): 10.0})
    assert quotas.charge(PRODUCE, "alice", "", 20, 0.0) == pytest.approx(1.0)


def test_a_client_that_was_idle_has_saved_one_window() -> None:
    quotas = with_limits(({"user": "alice"}, 10.0))
    assert quotas.charge(PRODUCE, "alice", "", 10, 0.0) == 0.0
    assert quotas.charge(PRODUCE, "alice", "", 20, 1000.0) == pytest.approx(1.0)


def test_a_client_that_comes_again_and_again_keeps_its_debt() -> None:
    """However many others come in between: the bucket that goes is that of a client that was idle."""
    quotas = with_limits(({"client-id": None}, 1.0))
    quotas.charge(PRODUCE, "", "busy", 1e6, 0.0)
    for number in range(BUCKETS_MAX + 5):
        quotas.charge(PRODUCE, "", f"client-{number}", 1, 0.0)
        assert quotas.debt_s(PRODUCE, "", "busy", 0.0) > 0


def test_limits_that_are_found_take_bounded_memory() -> None:
    quotas = with_limits(({"user": "alice"}, 1.0))
    for number in range(FOUND_MAX + 5):
        assert quotas.limit(PRODUCE, "bob", f"client-{number}") is None
    assert len(quotas._found) <= FOUND_MAX


def test_kinds_do_not_disturb_each_other() -> None:
    quotas = with_limits(({"user": "alice"}, 1.0))
    assert quotas.charge(QuotaKind.FETCH, "alice", "", 1e9, 0.0) == 0.0


def test_connections_of_an_address() -> None:
    quotas = ClientQuotas()
    assert quotas.admits_connection("10.0.0.1", 0.0)
    limits: list[tuple[str | None, float]] = [(None, 2), ("10.0.0.2", 4), ("10.0.0.4", 0.5)]
    quotas.set_limits({(QuotaEntity.of({"ip": name}), QuotaKind.CONNECTION): limit for name, limit in limits})
    assert [quotas.admits_connection("10.0.0.1", 0.0) for _ in range(4)] == [True, True, False, False]
    assert [quotas.admits_connection("10.0.0.1", 0.5) for _ in range(2)] == [True, False]
    assert [quotas.admits_connection("10.0.0.2", 0.0) for _ in range(6)] == [True] * 4 + [False] * 2
    assert [quotas.admits_connection("10.0.0.4", at_s) for at_s in (0.0, 1.0, 2.0)] == [True, False, True]
    assert quotas.admits_connection("10.0.0.3", 0.0)


def test_a_pause_is_bounded_and_the_debt_is_not_forgotten() -> None:
    quotas = with_limits(({"user": "alice"}, 10.0), pause_s_max=11.0)
    assert quotas.charge(PRODUCE, "alice", "", 1010, 0.0) == 11.0
    assert quotas.debt_s(PRODUCE, "alice", "", 99.0) == pytest.approx(1.0)
    of_requests = with_limits(({"user": "alice"}, 10.0), kind=QuotaKind.REQUEST, pause_s_max=11.0)
    assert of_requests.charge(QuotaKind.REQUEST, "alice", "", 1010, 0.0) == 1.0


def test_mutations_are_refused_while_the_bucket_is_below_zero() -> None:
    kind = QuotaKind.CONTROLLER_MUTATION
    quotas = ClientQuotas(mutation_window=QuotaWindow(1.0, 10))
    quotas.set_limits({(QuotaEntity.of({"user": "alice"}), kind): 2.0})
    assert quotas.charge(kind, "alice", "", 20, 0.0) == 0.0
    assert quotas.admits_mutation("alice", "", 0.0)
    assert quotas.charge(kind, "alice", "", 6, 0.0) == pytest.approx(3.0)
    assert not quotas.admits_mutation("alice", "", 2.9)
    assert quotas.admits_mutation("alice", "", 3.1)
    assert quotas.admits_mutation("bob", "", 0.0)


def test_an_endless_client_id_costs_bounded_memory() -> None:
    quotas = with_limits(({"client-id": None}, 1.0))
    found = quotas.limit(PRODUCE, "", "a" * 30_000)
    assert found
    assert len(found[1][1]) <= NAME_CHARACTERS_MAX


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
