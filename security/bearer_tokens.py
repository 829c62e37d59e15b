"""Bearer tokens: JSON Web Tokens (RFC 7519) that a key of a key set signs (RFC 7517, KIP-768).  Pure: the
clock is given.

A token is accepted when a key of the set signed it by an asymmetric algorithm, it names its subject and its
end, the end lies ahead and its beginning behind (with some seconds for clocks that differ), and, where they
are set, its audience and issuer are the expected ones.  `alg=none` and the symmetric algorithms, with which a
public key would be a password, are never accepted.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import jwt

from .principals import USER_TYPE, Principal
from .sasl import Identity
from .sasl_mechanisms import TokenRefused

ALGORITHMS: Final = (
    "RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA",
)  # fmt: skip
KEYS_MAX: Final = 1_000


class KeySetError(ValueError):
    """A key set that cannot be used; the message says why."""


class UnknownKey(TokenRefused):
    """The token names a key that the key set does not have: a new one, or one that the client made up."""


def parse_key_set(text: str | bytes) -> Mapping[str, jwt.PyJWK]:
    """Key id -> key, of a JWKS document; keys of other kinds are left out.  Raises KeySetError."""
    try:
        entries = json.loads(text)["keys"]
        found = [entry for entry in entries if isinstance(entry, dict)]
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise KeySetError("that is no JSON Web Key Set: an object with a list of keys") from error
    if len(found) > KEYS_MAX:
        raise KeySetError(f"{len(found)} keys are more than {KEYS_MAX}")
    keys: dict[str, jwt.PyJWK] = {}
    for entry in found:
        if entry.get("kty") not in ("RSA", "EC", "OKP") or entry.get("use", "sig") != "sig":
            continue
        try:
            keys[str(entry.get("kid", ""))] = jwt.PyJWK(entry)
        except Exception as error:  # the library has no bound on what it raises for a field of another kind
            raise KeySetError(
                f"the key {entry.get('kid')!r:.100} cannot be used: {type(error).__name__}"
            ) from error
    if not keys:
        raise KeySetError("the key set has no public key for signatures")
    return keys


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenRules:
    """What a token must say (`sasl.oauthbearer.*`)."""

    audiences: frozenset[str] = frozenset()
    """One of these; empty: any."""
    issuer: str = ""
    """Empty: any."""
    subject_claim: str = "sub"
    clock_skew_s: int = 30

    def identity(self, token: str, keys: Mapping[str, jwt.PyJWK], now_ms: int) -> Identity:
        """The token's principal and end.  Raises TokenRefused."""
        claims = self._claims(token, keys)
        now_s = now_ms / 1000
        end_s = _seconds(claims, "exp")
        if end_s is None:
            raise TokenRefused("the token has no end (exp)")
        if now_s >= end_s + self.clock_skew_s:
            raise TokenRefused(f"the token ended {now_s - end_s:.0f} s ago")
        for claim in ("nbf", "iat"):
            begin_s = _seconds(claims, claim)
            if begin_s is not None and now_s < begin_s - self.clock_skew_s:
                raise TokenRefused(f"the token holds from {begin_s - now_s:.0f} s from now on ({claim})")
        subject = claims.get(self.subject_claim)
        if not isinstance(subject, str) or not subject.strip():
            raise TokenRefused(f"the token names no subject ({self.subject_claim})")
        return Identity(Principal(USER_TYPE, subject.strip()), int(end_s * 1000))

    def _claims(self, token: str, keys: Mapping[str, jwt.PyJWK]) -> Mapping[str, Any]:
        try:
            header = jwt.get_unverified_header(token)
            key = keys.get(str(header.get("kid", "")))
            if key is None:
                raise UnknownKey(f"no key of the key set has the id {header.get('kid')!r:.100}")
            if key.algorithm_name != header.get("alg"):
                raise TokenRefused(f"the token's algorithm {header.get('alg')!r:.20} is not its key's")
            claims: Mapping[str, Any] = jwt.decode(
                token,
                key,
                algorithms=list(ALGORITHMS),
                audience=sorted(self.audiences) or None,
                issuer=self.issuer or None,
                options={
                    "verify_exp": False, "verify_nbf": False, "verify_iat": False,
                    "verify_aud": bool(self.audiences), "verify_iss": bool(self.issuer), "verify_sub": False,
                },
            )  # fmt: skip
        except jwt.PyJWTError as error:
            raise TokenRefused(f"{type(error).__name__}: {error}") from error
        return claims


def _seconds(claims: Mapping[str, Any], claim: str) -> float | None:
    value = claims.get(claim)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < 1e12:
        raise TokenRefused(f"the token's {claim} is no time")
    return float(value)
