"""SASL on one connection: the state table, and what each mechanism takes and refuses."""

from __future__ import annotations

import hmac
import json

import pytest
from tidegate.security.principals import Principal
from tidegate.security.sasl import Identity, SaslFailure, SaslSession, SaslState, Step
from tidegate.security.sasl_mechanisms import OAuthBearerExchange, PlainExchange, TokenRefused
from tidegate.wire.api import ApiKey
from tidegate.wire.errors import ErrorCode

ALICE, BOB = Principal("User", "alice"), Principal("User", "bob")
NOW_MS = 1_000_000


class OneToken:
    """Takes `name` as the proof that the client is that user; `more` asks for another token."""

    def __init__(self, expires_at_ms: int | None = None) -> None:
        self._expires_at_ms = expires_at_ms

    def respond(self, token: bytes, now_ms: int) -> Step:
        if token == b"more":
            return Step(b"go on")
        if token == b"wrong":
            raise SaslFailure("Authentication failed", "no such user: wrong")
        return Step(b"done", Identity(Principal("User", token.decode()), self._expires_at_ms))


def session(max_reauth_ms: int = 0, expires_at_ms: int | None = None) -> SaslSession:
    return SaslSession({"ONE": lambda: OneToken(expires_at_ms), "TWO": OneToken}, max_reauth_ms)


def authenticated(made: SaslSession, user: bytes = b"alice", now_ms: int = NOW_MS) -> SaslSession:
    assert made.handshake("ONE", 1, now_ms).error is ErrorCode.NONE
    assert made.authenticate(user, now_ms).error is ErrorCode.NONE
    return made


def in_state(state: SaslState) -> SaslSession:
    made = session()
    if state is SaslState.CHALLENGED:
        made.handshake("ONE", 1, NOW_MS)
    elif state is SaslState.AUTHENTICATED:
        authenticated(made)
    elif state is SaslState.FAILED:
        made.handshake("NONE", 1, NOW_MS)
    assert made.state is state
    return made


@pytest.mark.parametrize(
    ("state", "served"),
    [
        (SaslState.BEGINNING, {ApiKey.API_VERSIONS, ApiKey.SASL_HANDSHAKE}),
        (SaslState.CHALLENGED, {ApiKey.SASL_AUTHENTICATE}),
        (SaslState.AUTHENTICATED, set(ApiKey)),
        (SaslState.FAILED, set()),
    ],
)
def test_a_state_serves_only_its_requests(state: SaslState, served: set[ApiKey]) -> None:
    assert {key for key in ApiKey if in_state(state).refuses(key, NOW_MS) is None} == served


def test_an_exchange_of_two_messages() -> None:
    made = session()
    assert made.handshake("ONE", 1, NOW_MS).error is ErrorCode.NONE
    assert made.authenticate(b"more", NOW_MS).token == b"go on"
    assert made.state is SaslState.CHALLENGED
    reply = made.authenticate(b"alice", NOW_MS)
    assert (reply.error, reply.token, reply.session_lifetime_ms) == (ErrorCode.NONE, b"done", 0)
    assert made.principal == ALICE
    assert made.refuses(ApiKey.FETCH, NOW_MS + 10**12) is None, "without max_reauth_ms it has no end"


def test_an_unknown_mechanism_and_a_wrong_password_end_the_connection() -> None:
    made = session()
    assert made.handshake("NONE", 1, NOW_MS).error is ErrorCode.UNSUPPORTED_SASL_MECHANISM
    assert made.state is SaslState.FAILED
    made = session()
    made.handshake("ONE", 1, NOW_MS)
    reply = made.authenticate(b"wrong", NOW_MS)
    assert (reply.error, reply.message) == (ErrorCode.SASL_AUTHENTICATION_FAILED, "Authentication failed")
    assert reply.detail == "no such user: wrong"
    assert made.principal is None
    assert made.authenticate(b"alice", NOW_MS).error is ErrorCode.ILLEGAL_SASL_STATE


def test_a_session_ends_and_goes_on_after_another_exchange() -> None:
    made = authenticated(session(max_reauth_ms=10_000))
    assert made.refuses(ApiKey.PRODUCE, NOW_MS + 9_999) is None
    assert made.refuses(ApiKey.PRODUCE, NOW_MS + 10_000) is not None
    assert made.refuses(ApiKey.SASL_HANDSHAKE, NOW_MS + 10_000) is None
    assert made.handshake("ONE", 1, NOW_MS + 10_000).error is ErrorCode.NONE
    assert made.refuses(ApiKey.PRODUCE, NOW_MS + 10_000) is not None
    reply = made.authenticate(b"alice", NOW_MS + 10_000)
    assert (reply.error, reply.session_lifetime_ms) == (ErrorCode.NONE, 10_000)
    assert made.refuses(ApiKey.PRODUCE, NOW_MS + 19_999) is None


def test_a_session_is_no_longer_than_its_token() -> None:
    made = session(max_reauth_ms=10_000, expires_at_ms=NOW_MS + 4_000)
    made.handshake("ONE", 1, NOW_MS)
    assert made.authenticate(b"alice", NOW_MS).session_lifetime_ms == 4_000
    assert made.refuses(ApiKey.FETCH, NOW_MS + 4_000) is not None


@pytest.mark.parametrize("max_reauth_ms", [0, 60_000])
def test_a_token_that_ends_ends_the_session(max_reauth_ms: int) -> None:
    made = authenticated(session(max_reauth_ms, expires_at_ms=NOW_MS + 50))
    assert made.refuses(ApiKey.FETCH, NOW_MS + 49) is None
    assert made.refuses(ApiKey.FETCH, NOW_MS + 50) is not None


def test_a_session_cannot_change_its_principal_or_mechanism() -> None:
    made = authenticated(session(max_reauth_ms=10_000))
    made.handshake("ONE", 1, NOW_MS + 5_000)
    assert made.authenticate(b"bob", NOW_MS + 5_000).error is ErrorCode.SASL_AUTHENTICATION_FAILED
    assert made.refuses(ApiKey.FETCH, NOW_MS + 5_000) is not None
    made = authenticated(session(max_reauth_ms=10_000))
    assert made.handshake("TWO", 1, NOW_MS + 5_000).error is ErrorCode.ILLEGAL_SASL_STATE


def test_a_client_cannot_authenticate_all_the_time() -> None:
    made = authenticated(session())
    assert made.handshake("ONE", 1, NOW_MS + 5_000).error is ErrorCode.ILLEGAL_SASL_STATE
    assert made.state is SaslState.AUTHENTICATED
    made = authenticated(session(max_reauth_ms=10_000))
    assert made.handshake("ONE", 1, NOW_MS + 999).error is ErrorCode.ILLEGAL_SASL_STATE
    assert made.handshake("ONE", 1, NOW_MS + 1_000).error is ErrorCode.NONE


def test_after_a_handshake_of_version_0_tokens_come_without_a_request() -> None:
    made = session()
    made.handshake("ONE", 0, NOW_MS)
    assert made.refuses(ApiKey.SASL_AUTHENTICATE, NOW_MS) is not None
    assert made.authenticate(b"alice", NOW_MS).error is ErrorCode.NONE


def test_the_log_has_little_of_a_long_name_of_a_mechanism() -> None:
    assert len(session().handshake("M" * 30_000, 1, NOW_MS).detail) < 200


def test_a_password_is_compared_in_constant_time_also_for_an_unknown_user(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    compared: list[bytes] = []

    def compare(expected: bytes, given: bytes) -> bool:
        compared.append(given)
        return expected == given

    monkeypatch.setattr(hmac, "compare_digest", compare)
    for user in (b"alice", b"mallory"):
        with pytest.raises(SaslFailure):
            PlainExchange({"alice": "secret"}).respond(b"\0" + user + b"\0wrong", NOW_MS)
    assert compared == [b"wrong"] * 2


@pytest.mark.parametrize(
    ("message", "refusal"),
    [
        (b"\0alice\0secret", None),
        (b"alice\0alice\0secret", None),
        (b"bob\0alice\0secret", "authorization id that is different"),
        (b"\0alice\0Secret", "Invalid username or password"),
        (b"\0alice\0", "password not specified"),
        (b"\0\0secret", "username not specified"),
        (b"\0nobody\0secret", "Invalid username or password"),
        (b"alice\0secret", "expected 3 tokens"),
        (b"\0a\0b\0c", "expected 3 tokens"),
        (b"\0alice\xff\0secret", "expected 3 tokens"),
        (b"", "expected 3 tokens"),
    ],
)
def test_plain(message: bytes, refusal: str | None) -> None:
    exchange = PlainExchange({"alice": "secret", "bob": ""})
    if refusal is None:
        assert exchange.respond(message, NOW_MS) == Step(b"", Identity(ALICE))
    else:
        with pytest.raises(SaslFailure, match=refusal) as found:
            exchange.respond(message, NOW_MS)
        assert "secret" not in found.value.detail.lower()
        assert "nobody" not in found.value.detail  # a user may have typed its password there


def _bearer(token: str, now_ms: int) -> Identity:
    if token != "good":
        raise TokenRefused("the token ended 5 s ago")
    return Identity(ALICE, NOW_MS + 60_000)


@pytest.mark.parametrize(
    ("message", "refusal"),
    [
        (b"n,,\x01auth=Bearer good\x01\x01", None),
        (b"n,,\x01auth=bearer good\x01traceId=1\x01\x01", None),
        (b"n,a=alice,\x01auth=Bearer good\x01\x01", None),
        (b"n,a=bob,\x01auth=Bearer good\x01\x01", "authorization id"),
        (b"n,a=\xff,\x01auth=Bearer good\x01\x01", "authorization id"),
        (b"n,,\x01auth=Basic good\x01\x01", "'auth' not specified"),
        (b"n,,\x01auth=Bearer \x01\x01", "'auth' not specified"),
        (b"n,,\x01other=Bearer good\x01\x01", "'auth' not specified"),
        (b"y,,\x01auth=Bearer good\x01\x01", "Invalid OAUTHBEARER client first message"),
        (b"n,,\x01auth=Bearer good\x01", "Invalid OAUTHBEARER client first message"),
        (b"", "Invalid OAUTHBEARER client first message"),
        (b"n,,\x01auth=Bearer " + b"g" * 70_000 + b"\x01\x01", "Invalid OAUTHBEARER client first message"),
    ],
)
def test_oauthbearer(message: bytes, refusal: str | None) -> None:
    exchange = OAuthBearerExchange(_bearer)
    if refusal is None:
        assert exchange.respond(message, NOW_MS) == Step(b"", Identity(ALICE, NOW_MS + 60_000))
    else:
        with pytest.raises(SaslFailure, match=refusal):
            exchange.respond(message, NOW_MS)


def test_a_refused_token_is_answered_with_a_reason_and_then_refused() -> None:
    exchange = OAuthBearerExchange(_bearer)
    step = exchange.respond(b"n,,\x01auth=Bearer old\x01\x01", NOW_MS)
    assert json.loads(step.token) == {"status": "invalid_token"}
    assert step.identity is None
    with pytest.raises(SaslFailure) as found:
        exchange.respond(b"\x01", NOW_MS)
    assert found.value.detail == "the token ended 5 s ago"
