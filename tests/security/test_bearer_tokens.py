"""Bearer tokens: what is accepted, and each way in which a token can be forged or stale."""

from __future__ import annotations

import base64
import itertools
import json
from typing import Any

import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from tidegate.security.bearer_tokens import KEYS_MAX, KeySetError, TokenRules, parse_key_set
from tidegate.security.principals import Principal
from tidegate.security.sasl import Identity
from tidegate.security.sasl_mechanisms import TokenRefused

NOW_MS = 1_700_000_000_000
NOW_S = NOW_MS // 1000
RSA = rsa.generate_private_key(public_exponent=65537, key_size=2048)
EC = ec.generate_private_key(ec.SECP256R1())
OTHER = rsa.generate_private_key(public_exponent=65537, key_size=2048)
CLAIMS: dict[str, Any] = {"sub": "alice", "exp": NOW_S + 600, "iat": NOW_S, "aud": ["tidegate"], "iss": "me"}
RULES = TokenRules(audiences=frozenset({"tidegate", "kafka"}), issuer="me")


def _public(key: Any, algorithm: str, kid: str) -> dict[str, Any]:
    jwk: dict[str, Any] = jwt.get_algorithm_by_name(algorithm).to_jwk(key.public_key(), as_dict=True)
    return {**jwk, "kid": kid, "alg": algorithm, "use": "sig"}


KEY_SET = json.dumps(
    {"keys": [_public(RSA, "RS256", "r"), _public(EC, "ES256", "e"), {"kty": "oct", "k": "YQ"}]}
)
KEYS = parse_key_set(KEY_SET)


def signed(claims: dict[str, Any], key: Any = RSA, algorithm: str = "RS256", kid: str = "r") -> str:
    return jwt.encode(claims, key, algorithm=algorithm, headers={"kid": kid})


@pytest.mark.parametrize(("key", "algorithm", "kid"), [(RSA, "RS256", "r"), (EC, "ES256", "e")])
def test_a_good_token_names_its_principal_and_its_end(key: Any, algorithm: str, kid: str) -> None:
    token = signed(CLAIMS, key, algorithm, kid)
    assert RULES.identity(token, KEYS, NOW_MS) == Identity(Principal("User", "alice"), (NOW_S + 600) * 1000)


def _unsigned() -> str:
    parts = [json.dumps({"alg": "none", "kid": "r"}), json.dumps(CLAIMS)]
    return ".".join(base64.urlsafe_b64encode(part.encode()).decode().rstrip("=") for part in parts) + "."


def _symmetric() -> str:
    """Signed by the public key, as if it were a password."""
    header = base64.urlsafe_b64encode(json.dumps({"alg": "HS256", "kid": "r"}).encode()).decode().rstrip("=")
    rest = jwt.encode(CLAIMS, "x" * 32, algorithm="HS256").split(".")
    return f"{header}.{rest[1]}.{rest[2]}"


@pytest.mark.parametrize(
    ("token", "reason"),
    [
        (signed({**CLAIMS, "exp": NOW_S - 31}), "ended 31 s ago"),
        (signed({**CLAIMS, "nbf": NOW_S + 31}), r"holds from 31 s from now on \(nbf\)"),
        (signed({**CLAIMS, "iat": NOW_S + 31}), r"holds from 31 s from now on \(iat\)"),
        (signed({key: value for key, value in CLAIMS.items() if key != "exp"}), "has no end"),
        (signed({**CLAIMS, "exp": True}), "exp is no time"),
        (signed({**CLAIMS, "exp": NOW_MS * 10}), "exp is no time"),
        (signed({**CLAIMS, "exp": float("inf")}), "exp is no time"),
        (signed({**CLAIMS, "exp": "9999999999"}), "exp is no time"),
        (signed({**CLAIMS, "nbf": -1}), "nbf is no time"),
        (signed({key: value for key, value in CLAIMS.items() if key != "sub"}), "names no subject"),
        (signed({**CLAIMS, "sub": " "}), "names no subject"),
        (signed({**CLAIMS, "aud": "others"}), "InvalidAudienceError"),
        (signed({key: value for key, value in CLAIMS.items() if key != "aud"}), "MissingRequiredClaimError"),
        (signed({**CLAIMS, "iss": "you"}), "InvalidIssuerError"),
        (signed(CLAIMS, OTHER), "InvalidSignatureError"),
        (signed(CLAIMS, kid="s"), "no key of the key set has the id 's'"),
        (signed(CLAIMS, EC, "ES256", "r"), "'ES256' is not its key's"),
        (signed(CLAIMS)[:-8], "InvalidSignatureError|DecodeError"),
        (_unsigned(), "'none' is not its key's"),
        (_symmetric(), "'HS256' is not its key's"),
        ("a.b.c", "DecodeError"),
        ("", "DecodeError"),
    ],
    ids=itertools.count(),  # the tokens themselves are others in each process
)
def test_a_bad_token_is_refused(token: str, reason: str) -> None:
    with pytest.raises(TokenRefused, match=reason):
        RULES.identity(token, KEYS, NOW_MS)


def test_only_algorithms_of_the_list_are_taken_whatever_the_key_set_says() -> None:
    key = ec.generate_private_key(ec.SECP256K1())
    keys = parse_key_set(json.dumps({"keys": [_public(key, "ES256K", "k")]}))
    with pytest.raises(TokenRefused, match="InvalidAlgorithmError"):
        RULES.identity(signed(CLAIMS, key, "ES256K", "k"), keys, NOW_MS)


def test_a_key_for_encryption_signs_nothing() -> None:
    for_encryption = _public(RSA, "RS256", "r") | {"use": "enc"}
    keys = parse_key_set(json.dumps({"keys": [for_encryption, _public(EC, "ES256", "e")]}))
    with pytest.raises(TokenRefused, match="no key of the key set has the id 'r'"):
        RULES.identity(signed(CLAIMS), keys, NOW_MS)


def test_clocks_may_differ_by_some_seconds() -> None:
    for changed in ({"exp": NOW_S - 29}, {"nbf": NOW_S + 30}, {"iat": NOW_S + 30}):
        RULES.identity(signed({**CLAIMS, **changed}), KEYS, NOW_MS)


def test_audience_and_issuer_are_checked_only_where_they_are_set() -> None:
    rules = TokenRules(subject_claim="client")
    token = signed({"client": "spark", "exp": NOW_S + 5})
    assert rules.identity(token, KEYS, NOW_MS).principal.name == "spark"


@pytest.mark.parametrize(
    "text", ["", "[]", "{}", '{"keys": 5}', '{"keys": []}', '{"keys": [{"kty": "oct", "k": "YQ"}]}',
             '{"keys": [{"kty": "RSA", "n": "x"}]}', '{"keys": [{"kty": "RSA", "n": 5, "e": [], "alg": {}}]}',
             "[" * 100_000],
    ids=itertools.count(),
)  # fmt: skip
def test_text_that_is_no_key_set_is_refused(text: str) -> None:
    with pytest.raises(KeySetError):
        parse_key_set(text)


def test_a_key_set_is_bounded() -> None:
    text = json.dumps({"keys": [_public(EC, "ES256", "e")] * (KEYS_MAX + 1)})
    with pytest.raises(KeySetError, match=f"more than {KEYS_MAX}"):
        parse_key_set(text)
