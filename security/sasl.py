"""A listener's side of SASL on one connection (KIP-43, KIP-152, KIP-368).  Pure: the clock is given.

| state | ApiVersions | SaslHandshake | SaslAuthenticate | another request |
|---|---|---|---|---|
| BEGINNING | served | CHALLENGED, or FAILED for an unknown mechanism | closed | closed |
| CHALLENGED | closed | closed | CHALLENGED, AUTHENTICATED or FAILED | closed |
| AUTHENTICATED | served | CHALLENGED, if the session has an end | ILLEGAL_SASL_STATE | served until the end |
| FAILED | closed | closed | closed | closed |

A client authenticates again on the same connection before its session ends: by the same mechanism and as the
same principal.  A session lasts for `connections.max.reauth.ms`, and no longer than the client's token.

What a client is told of a failure is the same for an unknown user and for a wrong password; the reason for
the log is in `SaslFailure.detail`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Final, Protocol

from ..wire.api import ApiKey
from ..wire.errors import ErrorCode
from .principals import Principal

RAW_TOKENS_VERSION: Final = 0
"""After SaslHandshake of this version the client's tokens come without a request header."""
REAUTHENTICATION_INTERVAL_MS_MIN: Final = 1_000


class SaslFailure(Exception):
    """An exchange has failed.  The message is for the client, `detail` for the node's log; neither holds a
    password."""

    def __init__(self, message: str, detail: str = "") -> None:
        super().__init__(message)
        self.detail = detail or message


@dataclass(frozen=True, slots=True)
class Identity:
    """What an exchange proved."""

    principal: Principal
    expires_at_ms: int | None = None
    """When the client's token ends; None: never."""


@dataclass(frozen=True, slots=True)
class Step:
    """The server's next token, and the identity when the exchange is over."""

    token: bytes
    identity: Identity | None = None


class Exchange(Protocol):
    """One exchange of one mechanism."""

    def respond(self, token: bytes, now_ms: int) -> Step:
        """Raises SaslFailure, after which the exchange is over."""
        ...


Mechanisms = Mapping[str, Callable[[], Exchange]]
"""The mechanisms of a listener (`sasl.enabled.mechanisms`) by their names, in the order of the setting."""


class SaslState(Enum):
    """See the module's table."""

    BEGINNING = "beginning"
    CHALLENGED = "challenged"
    AUTHENTICATED = "authenticated"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class SaslReply:
    """An answer to SaslHandshake or SaslAuthenticate.  With an error the connection is closed after it."""

    error: ErrorCode = ErrorCode.NONE
    message: str | None = None
    token: bytes = b""
    session_lifetime_ms: int = 0
    detail: str = ""
    """For the node's log."""


class SaslSession:
    """See the module's text."""

    def __init__(self, mechanisms: Mechanisms, max_reauth_ms: int = 0) -> None:
        """`max_reauth_ms`: how long a session lasts at most; 0: as long as its token."""
        self.state = SaslState.BEGINNING
        self.principal: Principal | None = None
        """Of the last exchange that succeeded."""
        self.ends_at_ms: int | None = None
        """The end of the session; None: it has none."""
        self.takes_raw_tokens = False
        self._mechanisms = mechanisms
        self._max_reauth_ms = max_reauth_ms
        self._mechanism = ""
        self._exchange: Exchange | None = None
        self._began_at_ms: int | None = None

    def refuses(self, api_key: int, now_ms: int) -> str | None:
        """Why the connection must be closed instead of serving a request; None when it is served."""
        match self.state:
            case SaslState.AUTHENTICATED:
                if self._has_ended(now_ms) and api_key not in _OF_AUTHENTICATION:
                    return "the session has ended, and the client has not authenticated again"
                return None
            case SaslState.BEGINNING if api_key in (ApiKey.API_VERSIONS, ApiKey.SASL_HANDSHAKE):
                return None
            case SaslState.CHALLENGED if api_key == ApiKey.SASL_AUTHENTICATE and not self.takes_raw_tokens:
                return None
            case state:
                return f"request {api_key} in the state {state.value} of authentication"

    def handshake(self, mechanism: str, version: int, now_ms: int) -> SaslReply:
        """Chooses the mechanism, at the beginning and before the session's end."""
        again = self.state is SaslState.AUTHENTICATED
        if again and not self._may_begin_again(now_ms):
            return SaslReply(ErrorCode.ILLEGAL_SASL_STATE, detail="a handshake in an open session")
        if again and mechanism != self._mechanism:
            return self._failed(
                ErrorCode.ILLEGAL_SASL_STATE,
                f"a session of {self._mechanism} cannot go on with {mechanism}",
            )
        make = self._mechanisms.get(mechanism)
        if make is None:
            return self._failed(
                ErrorCode.UNSUPPORTED_SASL_MECHANISM, f"the mechanism {mechanism!r:.100} is not enabled"
            )
        self._mechanism, self._exchange = mechanism, make()
        self._began_at_ms = now_ms
        self.takes_raw_tokens = version == RAW_TOKENS_VERSION
        self.state = SaslState.CHALLENGED
        return SaslReply()

    def authenticate(self, token: bytes, now_ms: int) -> SaslReply:
        """Goes on with the exchange."""
        if self.state is not SaslState.CHALLENGED or self._exchange is None:
            detail = "SaslAuthenticate without a handshake"
            message = "SaslAuthenticate request received after successful authentication"
            return SaslReply(ErrorCode.ILLEGAL_SASL_STATE, message, detail=detail)
        try:
            step = self._exchange.respond(token, now_ms)
        except SaslFailure as failure:
            return self._failed(ErrorCode.SASL_AUTHENTICATION_FAILED, failure.detail, str(failure))
        if step.identity is None:
            return SaslReply(token=step.token)
        return self._authenticated(step.token, step.identity, now_ms)

    def _authenticated(self, token: bytes, identity: Identity, now_ms: int) -> SaslReply:
        if self.principal is not None and identity.principal != self.principal:
            return self._failed(
                ErrorCode.SASL_AUTHENTICATION_FAILED,
                f"{identity.principal} in the session of {self.principal}",
                f"Cannot change principals during re-authentication from {self.principal} to "
                f"{identity.principal}",
            )
        ends = [self._max_reauth_ms + now_ms] if self._max_reauth_ms else []
        if identity.expires_at_ms is not None:
            ends.append(identity.expires_at_ms)
        self.principal, self._exchange = identity.principal, None
        self.ends_at_ms = min(ends, default=None)
        self.state = SaslState.AUTHENTICATED
        lifetime_ms = 0 if self.ends_at_ms is None or not self._max_reauth_ms else self.ends_at_ms - now_ms
        return SaslReply(token=token, session_lifetime_ms=max(0, lifetime_ms))

    def _has_ended(self, now_ms: int) -> bool:
        return self.ends_at_ms is not None and now_ms >= self.ends_at_ms

    def _may_begin_again(self, now_ms: int) -> bool:
        began = self._began_at_ms
        return self.ends_at_ms is not None and (
            began is None or now_ms - began >= REAUTHENTICATION_INTERVAL_MS_MIN
        )

    def _failed(self, error: ErrorCode, detail: str, message: str | None = None) -> SaslReply:
        self.state, self._exchange = SaslState.FAILED, None
        return SaslReply(error, message, detail=detail)


_OF_AUTHENTICATION: Final = (ApiKey.API_VERSIONS, ApiKey.SASL_HANDSHAKE, ApiKey.SASL_AUTHENTICATE)
