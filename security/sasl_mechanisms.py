"""The mechanisms of SASL: PLAIN (RFC 4616), SCRAM (RFC 5802) and OAUTHBEARER (RFC 7628).  Pure."""

from __future__ import annotations

import hmac
import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from .principals import USER_TYPE, Principal
from .sasl import Identity, SaslFailure, Step
from .scram import (
    ClientFirst,
    ScramCredential,
    ScramError,
    ScramMechanism,
    ScramServer,
    UnknownUsers,
    parse_client_first,
)

PLAIN: Final = "PLAIN"
OAUTHBEARER: Final = "OAUTHBEARER"
TOKEN_BYTES_MAX: Final = 64 * 1024
WRONG_PASSWORD: Final = "Authentication failed: Invalid username or password"


class PlainExchange:
    """One message: `[authorization id] NUL user NUL password`."""

    def __init__(self, passwords: Mapping[str, str]) -> None:
        self._passwords = passwords

    def respond(self, token: bytes, now_ms: int) -> Step:
        try:
            authorization_id, user, password = token.decode().split("\0")
        except ValueError as error:
            raise SaslFailure(
                "Invalid SASL/PLAIN response: expected 3 tokens", "a PLAIN message that cannot be read"
            ) from error
        if not user or not password:
            what = "username" if not user else "password"
            raise SaslFailure(f"Authentication failed: {what} not specified")
        expected = self._passwords.get(user)
        # compared in any case: the time must not tell which users exist
        right = hmac.compare_digest((expected or "").encode(), password.encode())
        if expected is None or not right:
            raise SaslFailure(WRONG_PASSWORD, "no such user, or the password is wrong")
        if authorization_id not in ("", user):
            raise SaslFailure(
                "Authentication failed: Client requested an authorization id that is different from username"
            )
        return Step(b"", Identity(Principal(USER_TYPE, user)))


@dataclass(frozen=True, slots=True)
class KnownUser:
    """A user's credential, and the identity that it proves."""

    credential: ScramCredential
    identity: Identity


class ScramExchange:
    """Two messages of the client."""

    def __init__(
        self,
        mechanism: ScramMechanism,
        nonce: str,
        unknown: UnknownUsers,
        find: Callable[[ClientFirst], KnownUser | None],
    ) -> None:
        """`nonce`: see ScramServer.  `find`: the user of a first message, or of a delegation
        token where the message has `tokenauth=true`."""
        self._server = ScramServer(mechanism, nonce, unknown)
        self._mechanism = mechanism
        self._find = find
        self._known: KnownUser | None = None
        self._is_challenged = False

    def respond(self, token: bytes, now_ms: int) -> Step:
        try:
            if not self._is_challenged:
                first = parse_client_first(token)
                self._known = self._find(first)
                self._is_challenged = True
                return Step(
                    self._server.challenge(first, None if self._known is None else self._known.credential)
                )
            final = self._server.verify(token)
        except ScramError as error:
            raise SaslFailure(
                "Authentication failed during authentication due to invalid credentials with SASL mechanism "
                f"{self._mechanism.mechanism_name}",
                str(error),
            ) from error
        assert self._known is not None, "only a credential verifies"
        return Step(final, self._known.identity)


class TokenRefused(Exception):
    """A bearer token that is not accepted; the message is for the node's log."""


class OAuthBearerExchange:
    """The token, and for a refused one the client's empty answer to the reason."""

    _FIRST: Final = re.compile(
        rb"n,(?:a=(?P<authorization>(?:[^=,\x01]|=2C|=3D)+))?,\x01"
        rb"(?P<pairs>(?:[A-Za-z]+=[\x21-\x7e \t\r\n]*\x01)+)\x01"
    )

    def __init__(self, validate: Callable[[str, int], Identity]) -> None:
        """`validate(token, now_ms)` raises TokenRefused."""
        self._validate = validate
        self._refusal = ""

    def respond(self, token: bytes, now_ms: int) -> Step:
        if self._refusal:
            raise SaslFailure('{"status":"invalid_token"}', self._refusal)
        found = self._FIRST.fullmatch(token) if len(token) <= TOKEN_BYTES_MAX else None
        if found is None:
            raise SaslFailure("Invalid OAUTHBEARER client first message")
        pairs = dict(pair.split(b"=", 1) for pair in found["pairs"].split(b"\x01") if pair)
        scheme, _, bearer = pairs.get(b"auth", b"").decode().partition(" ")
        if scheme.lower() != "bearer" or not bearer.strip():
            raise SaslFailure("Invalid OAUTHBEARER client first message: 'auth' not specified")
        try:
            identity = self._validate(bearer.strip(), now_ms)
        except TokenRefused as error:
            self._refusal = str(error)
            return Step(json.dumps({"status": "invalid_token"}).encode())
        authorization = (
            (found["authorization"] or b"").decode(errors="replace").replace("=2C", ",").replace("=3D", "=")
        )
        if authorization and authorization != identity.principal.name:
            raise SaslFailure(
                "Authentication failed: Client requested an authorization id that is different from the "
                "token's principal name"
            )
        return Step(b"", identity)
