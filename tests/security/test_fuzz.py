"""A few of the random clients of `fuzz.py`, and that it would see a hole."""

from __future__ import annotations

import pytest
from tidegate.node.serving.authentication import Authentication
from tidegate.security.bearer_tokens import TokenRules
from tidegate.security.principals import Principal
from tidegate.security.sasl import Identity, SaslSession, SaslState
from tidegate.security.scram import ScramServer

from . import fuzz

COUNT = 2_000


def test_random_clients_get_nothing_without_a_proof() -> None:
    counts = fuzz.run(COUNT, seed=1)
    assert all(counts[f"sessions by {mechanism}"] > 10 for mechanism in fuzz.MECHANISMS)
    assert counts["requests served within a session"] > 10


def test_requests_before_authentication_would_be_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(SaslSession, "refuses", lambda self, key, now_ms: None)
    with pytest.raises(AssertionError):
        fuzz.run(COUNT, seed=1)


def test_a_session_without_an_end_would_be_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(SaslSession, "_has_ended", lambda self, now_ms: False)
    with pytest.raises(AssertionError, match="after its session"):
        fuzz.run(COUNT, seed=1)


def test_a_replayed_proof_would_be_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the check of proof and nonce."""
    monkeypatch.setattr(ScramServer, "verify", lambda self, message: b"v=")
    with pytest.raises(AssertionError):
        fuzz.run(COUNT, seed=1)


def test_a_forged_bearer_token_would_be_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    anybody = Identity(Principal("User", "dora"))
    monkeypatch.setattr(TokenRules, "identity", lambda self, token, keys, now_ms: anybody)
    with pytest.raises(AssertionError):
        fuzz.run(COUNT, seed=1)


def test_a_failed_client_that_is_served_would_be_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Authentication, "is_over", property(lambda self: self.principal is not None))
    monkeypatch.setattr(SaslSession, "state", SaslState.AUTHENTICATED, raising=False)
    with pytest.raises(AssertionError):
        fuzz.run(COUNT, seed=1)
