"""Session tokens of gRPC: each holds for one connection and for a while, and there are not too many."""

from __future__ import annotations

import itertools

import pytest
from tidegate.security.principals import Principal
from tidegate.security.session_tokens import SESSION_MS_MAX, SessionTokens

ALICE, BOB = Principal("User", "alice"), Principal("User", "bob")


def make(sessions_max: int = 100, per_principal_max: int = 100) -> SessionTokens:
    names = (f"token-{number}" for number in itertools.count())
    return SessionTokens(
        sessions_max=sessions_max, per_principal_max=per_principal_max, new_token=lambda: next(names)
    )


def test_a_token_names_its_principal_on_its_connection_alone() -> None:
    tokens = make()
    token, lifetime_ms = tokens.issue(ALICE, "ipv4:10.0.0.1:4000", 1_000, None)
    assert lifetime_ms == SESSION_MS_MAX
    found = tokens.find(token, "ipv4:10.0.0.1:4000", 2_000)
    assert found is not None
    assert found.principal == ALICE
    assert tokens.find(token, "ipv4:10.0.0.1:4001", 2_000) is None
    assert tokens.find(token, "ipv4:10.0.0.2:4000", 2_000) is None
    assert tokens.find(token + "x", "ipv4:10.0.0.1:4000", 2_000) is None
    assert tokens.find("", "ipv4:10.0.0.1:4000", 2_000) is None


@pytest.mark.parametrize(
    ("ends_at_ms", "lifetime_ms"), [(None, SESSION_MS_MAX), (5_000, 4_000), (1 << 60, SESSION_MS_MAX)]
)
def test_a_session_ends_with_what_its_exchange_proved(ends_at_ms: int | None, lifetime_ms: int) -> None:
    tokens = make()
    token, given_ms = tokens.issue(ALICE, "peer", 1_000, ends_at_ms)
    assert given_ms == lifetime_ms
    assert tokens.find(token, "peer", 1_000 + lifetime_ms - 1) is not None
    assert tokens.find(token, "peer", 1_000 + lifetime_ms) is None
    assert len(tokens) == 0


def test_a_principal_with_many_sessions_ends_its_own() -> None:
    tokens = make(per_principal_max=2)
    first, second, other = (tokens.issue(who, "peer", 0, None)[0] for who in (ALICE, ALICE, BOB))
    assert tokens.find(first, "peer", 1) is not None  # so that the second is the one used least lately
    third = tokens.issue(ALICE, "peer", 2, None)[0]
    assert [tokens.find(token, "peer", 3) is not None for token in (first, second, third, other)] == [
        True, False, True, True,
    ]  # fmt: skip


def test_a_node_keeps_so_many_sessions() -> None:
    tokens = make(sessions_max=10)
    issued = [tokens.issue(Principal("User", str(number)), "peer", 0, None)[0] for number in range(1_000)]
    assert len(tokens) == 10
    assert [token for token in issued if tokens.find(token, "peer", 1) is not None] == issued[-10:]


def test_of_all_sessions_the_one_used_least_lately_ends() -> None:
    tokens = make(sessions_max=2)
    first, second = (tokens.issue(principal, "peer", 0, None)[0] for principal in (ALICE, BOB))
    assert tokens.find(first, "peer", 1) is not None
    tokens.issue(Principal("User", "carol"), "peer", 2, None)
    assert tokens.find(first, "peer", 3) is not None
    assert tokens.find(second, "peer", 3) is None


def test_the_node_does_not_keep_a_token_itself() -> None:
    tokens = make()
    token, _ = tokens.issue(ALICE, "peer", 0, None)
    assert token not in repr(vars(tokens))


def test_tokens_differ() -> None:
    tokens = SessionTokens()
    issued = {tokens.issue(ALICE, "peer", 0, None)[0] for _ in range(100)}
    assert len(issued) == 100
    assert min(map(len, issued)) >= 43
