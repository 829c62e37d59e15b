"""Delegation tokens: how long they live, which principals may change them, and what the log holds of them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from types import SimpleNamespace
from typing import cast

import pytest
from tidegate.controller.planning.delegation_tokens import (
    TOKENS_OF_REQUESTER_MAX,
    plan_delegation_token,
    plan_ended_tokens,
)
from tidegate.controller.state.cluster_state import ClusterState
from tidegate.controller.state.model import METADATA_VERSION, SECURITY_LEVEL
from tidegate.proto import controller_pb2 as rpc
from tidegate.security.delegation_tokens import (
    NAMES_BYTES_MAX,
    RENEWERS_MAX,
    DelegationToken,
    TokensByHmac,
    TokenSettings,
    create_token,
    expired,
    is_valid,
    renewed,
    token_hmac,
)
from tidegate.security.principals import Principal
from tidegate.security.records import SecurityRecords
from tidegate.wire.errors import ErrorCode, KafkaError

ALICE, BOB, CAROL = (Principal("User", name) for name in ("alice", "bob", "carol"))
SETTINGS = TokenSettings(b"secret", max_lifetime_ms=1000, expiry_time_ms=300)
NOW_MS = 5000


def made(
    *, max_lifetime_ms: int = -1, owner: Principal = ALICE, renewers: tuple[Principal, ...] = (BOB,)
) -> DelegationToken:
    return create_token(
        token_id="id", owner=owner, requester=CAROL, renewers=renewers, max_lifetime_ms=max_lifetime_ms,
        settings=SETTINGS, now_ms=NOW_MS,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("asked_ms", "expires_ms", "ends_ms"),
    [(-1, 300, 1000), (0, 300, 1000), (100, 100, 100), (500, 300, 500), (9999, 300, 1000)],
)
def test_a_token_lives_as_long_as_asked_and_as_the_settings_allow(
    asked_ms: int, expires_ms: int, ends_ms: int
) -> None:
    token = made(max_lifetime_ms=asked_ms)
    assert (token.issued_at_ms, token.expires_at_ms, token.ends_at_ms) == (
        NOW_MS, NOW_MS + expires_ms, NOW_MS + ends_ms
    )  # fmt: skip
    assert is_valid(token, token.expires_at_ms - 1)
    assert not is_valid(token, token.expires_at_ms)


@pytest.mark.parametrize(
    ("period_ms", "at_ms", "expires_at_ms"),
    [(-1, 100, 400), (0, 100, 400), (50, 100, 150), (9999, 100, 400), (-1, 290, 590)],
)
def test_a_renewed_token_ends_later_and_not_after_its_life(
    period_ms: int, at_ms: int, expires_at_ms: int
) -> None:
    assert renewed(made(), BOB, period_ms, SETTINGS, NOW_MS + at_ms).expires_at_ms == NOW_MS + expires_at_ms
    late = replace(made(), expires_at_ms=NOW_MS + 1000)
    assert renewed(late, ALICE, -1, SETTINGS, NOW_MS + 900).expires_at_ms == NOW_MS + 1000


def test_an_expired_token_ends_when_it_is_asked_to() -> None:
    assert expired(made(), ALICE, -1, NOW_MS) is None
    ended = expired(made(), BOB, 50, NOW_MS)
    assert ended
    assert ended.expires_at_ms == NOW_MS + 50
    late = expired(made(), BOB, 5_000, NOW_MS)
    assert late
    assert late.expires_at_ms == made().ends_at_ms, "a client cannot make a token live longer by this"
    assert expired(made(), ALICE, -1, NOW_MS + 10_000) is None, "of one that has ended, too"


def code_of(call: Callable[[], object]) -> ErrorCode:
    with pytest.raises(KafkaError) as caught:
        call()
    return caught.value.code


def test_errors_are_kafkas() -> None:
    token, later_ms = made(), NOW_MS + 10_000
    mismatch, ended = ErrorCode.DELEGATION_TOKEN_OWNER_MISMATCH, ErrorCode.DELEGATION_TOKEN_EXPIRED
    assert code_of(lambda: renewed(token, CAROL, -1, SETTINGS, NOW_MS)) is mismatch, (
        "she asked for it, no more"
    )
    assert code_of(lambda: renewed(token, CAROL, -1, SETTINGS, later_ms)) is ended
    assert code_of(lambda: expired(token, CAROL, -1, NOW_MS)) is mismatch
    assert code_of(lambda: expired(token, CAROL, 5, later_ms)) is mismatch
    assert code_of(lambda: expired(token, ALICE, 5, later_ms)) is ended
    group = Principal("Group", "g")
    assert code_of(lambda: made(renewers=(group,))) is ErrorCode.INVALID_PRINCIPAL_TYPE
    assert code_of(lambda: made(owner=group)) is ErrorCode.INVALID_PRINCIPAL_TYPE
    assert code_of(lambda: made(renewers=(BOB,) * (RENEWERS_MAX + 1))) is ErrorCode.INVALID_REQUEST
    long = Principal("User", "b" * NAMES_BYTES_MAX)
    assert code_of(lambda: made(renewers=(long,))) is ErrorCode.INVALID_REQUEST
    assert code_of(lambda: made(owner=long)) is ErrorCode.INVALID_REQUEST


def test_a_token_is_found_by_its_hmac_as_long_as_it_is_there() -> None:
    tokens = TokensByHmac(b"secret")
    wanted = token_hmac(b"secret", "id")
    assert tokens.find({"id": made(), "other": made()}, wanted) == made()
    for present in ({"other": made()}, {}):
        assert code_of(partial(tokens.find, present, wanted)) is ErrorCode.DELEGATION_TOKEN_NOT_FOUND
    assert code_of(lambda: tokens.find({"id": made()}, token_hmac(b"another", "id"))) is (
        ErrorCode.DELEGATION_TOKEN_NOT_FOUND
    )


def test_a_token_that_is_gone_takes_no_memory_and_opens_nothing_when_its_id_comes_again() -> None:
    tokens = TokensByHmac(b"secret")
    for number in range(100):
        assert tokens.find({f"id-{number}": made()}, token_hmac(b"secret", f"id-{number}")) == made()
    assert repr(vars(tokens)).count("id-") == 2


def test_the_secret_of_tokens_is_not_printed() -> None:
    assert "secret" not in repr(SETTINGS)


def state_of(*tokens: DelegationToken, level: int = SECURITY_LEVEL) -> ClusterState:
    security = SecurityRecords(tokens={token.token_id: token for token in tokens})
    state = SimpleNamespace(features={METADATA_VERSION: level}, security=security)
    return cast(ClusterState, state)


def planned(
    state: ClusterState,
    request: rpc.ChangeDelegationTokenRequest,
    settings: TokenSettings = SETTINGS,
    *,
    applied_before: bool = False,
) -> list[str]:
    """The operations, as text."""
    tokens = TokensByHmac(settings.secret)
    plan = plan_delegation_token(
        state, request, settings, lambda wanted: tokens.find(state.security.tokens, wanted), NOW_MS,
        applied_before=applied_before,
    )  # fmt: skip
    return [str(operation) for operation in plan.operations]


def test_the_log_has_no_secret_of_a_token() -> None:
    create = rpc.TokenToCreate(token_id="id", owner="User:alice", max_lifetime_ms=-1)
    (operation,) = planned(
        state_of(), rpc.ChangeDelegationTokenRequest(requester="User:alice", create=create)
    )
    assert "id" in operation
    assert str(token_hmac(b"secret", "id"))[2:10] not in operation
    assert "secret" not in operation


def test_a_copy_of_a_request_makes_no_second_token() -> None:
    create = rpc.TokenToCreate(token_id="id", owner="User:alice", max_lifetime_ms=-1)
    request = rpc.ChangeDelegationTokenRequest(requester="User:carol", create=create)
    assert planned(state_of(made()), request) == []


def test_without_a_secret_there_are_no_tokens() -> None:
    create = rpc.TokenToCreate(token_id="id", owner="User:alice", max_lifetime_ms=-1)
    request = rpc.ChangeDelegationTokenRequest(requester="User:alice", create=create)
    assert code_of(lambda: planned(state_of(), request, TokenSettings())) is (
        ErrorCode.DELEGATION_TOKEN_AUTH_DISABLED
    )


def test_below_its_level_a_cluster_has_no_tokens() -> None:
    create = rpc.TokenToCreate(token_id="id", owner="User:alice", max_lifetime_ms=-1)
    request = rpc.ChangeDelegationTokenRequest(requester="User:alice", create=create)
    assert code_of(lambda: planned(state_of(level=SECURITY_LEVEL - 1), request)) is (
        ErrorCode.UNSUPPORTED_VERSION
    )


def test_a_late_copy_of_a_request_moves_no_end_and_brings_no_token_back() -> None:
    end = rpc.TokenEnd(hmac=token_hmac(b"secret", "id"), period_ms=50)
    create = rpc.TokenToCreate(token_id="id", owner="User:alice", max_lifetime_ms=-1)
    for wanted in ({"expire": end}, {"renew": end}, {"create": create}):
        request = rpc.ChangeDelegationTokenRequest(requester="User:alice", **wanted)
        assert planned(state_of(made()), request, applied_before=True) == []
        assert planned(state_of(), request, applied_before=True) == []


def test_so_many_ended_tokens_are_removed_at_once() -> None:
    ended = [replace(made(), token_id=f"id-{number}", expires_at_ms=0) for number in range(1_500)]
    (operation,) = plan_ended_tokens(state_of(*ended), NOW_MS).operations
    assert len(operation.change_delegation_tokens.remove) == 1_000


def test_tokens_that_have_ended_are_removed() -> None:
    live, ended = made(), replace(made(), token_id="old", expires_at_ms=NOW_MS)
    (operation,) = plan_ended_tokens(state_of(live, ended), NOW_MS).operations
    assert list(operation.change_delegation_tokens.remove) == ["old"]
    assert plan_ended_tokens(state_of(live), NOW_MS).operations == []


def test_a_user_does_not_take_all_tokens_of_the_cluster() -> None:
    """They are requested by carol, and owned by others."""
    state = state_of(*(replace(made(), token_id=f"id-{number}") for number in range(TOKENS_OF_REQUESTER_MAX)))

    def asked(requester: Principal) -> rpc.ChangeDelegationTokenRequest:
        wanted = rpc.TokenToCreate(token_id="new", owner=str(ALICE))
        return rpc.ChangeDelegationTokenRequest(requester=str(requester), create=wanted)

    assert code_of(lambda: planned(state, asked(CAROL))) is ErrorCode.INVALID_REQUEST
    assert len(planned(state, asked(BOB))) == 1
