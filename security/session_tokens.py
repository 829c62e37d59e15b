"""Session tokens: what a client of a gRPC listener shows with each call, after one SASL exchange.  Pure: the
clock and the randomness are given.

Kafka binds a SASL exchange to its connection; a gRPC call does not know its connection's past.  So the node
gives the client a token, which holds for this node and for the connection on which the exchange ran (the
peer's address and port), and no longer than `SESSION_MS_MAX`.  A token that another connection shows is
refused: a stolen one is worth nothing without the TLS connection that it belongs to.  The node keeps the
tokens' digests alone, of so many sessions as it has room for; the client of a session that it dropped
authenticates again.
"""

from __future__ import annotations

import hashlib
import secrets
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from .principals import Principal

AUTHENTICATION_SERVICE: Final = "tidegate.authentication.Authentication"
AUTHENTICATE: Final = f"/{AUTHENTICATION_SERVICE}/Authenticate"
"""The call that carries the exchange: both streams carry the mechanism's tokens as they are."""
MECHANISM_KEY: Final = "sasl-mechanism"
"""In the call's metadata."""
SESSION_KEY: Final = "session-token"
LIFETIME_KEY: Final = "session-lifetime-ms"
"""In the trailing metadata of the node."""
SESSION_MS_MAX: Final = 3_600_000
SESSIONS_MAX: Final = 10_000
SESSIONS_PER_PRINCIPAL_MAX: Final = 1_000
TOKEN_BYTES: Final = 32


def random_token() -> str:
    """Not to be guessed."""
    return secrets.token_urlsafe(TOKEN_BYTES)


@dataclass(frozen=True, slots=True)
class Session:
    """What an exchange proved, about one connection."""

    principal: Principal
    peer: str
    ends_at_ms: int


class SessionTokens:
    """See the module's text."""

    def __init__(
        self,
        *,
        sessions_max: int = SESSIONS_MAX,
        per_principal_max: int = SESSIONS_PER_PRINCIPAL_MAX,
        new_token: Callable[[], str] = random_token,
    ) -> None:
        self._sessions_max = sessions_max
        self._per_principal_max = per_principal_max
        self._new_token = new_token
        self._sessions: OrderedDict[bytes, Session] = OrderedDict()
        """By digest of the token; the session that was used least lately is the first."""
        self._of_principal: dict[Principal, OrderedDict[bytes, None]] = {}

    def __len__(self) -> int:
        return len(self._sessions)

    def issue(self, principal: Principal, peer: str, now_ms: int, ends_at_ms: int | None) -> tuple[str, int]:
        """A token, and its lifetime in milliseconds.  `ends_at_ms`: the end of what the exchange proved;
        None: it has none.  Of a principal with too many sessions, the one used least lately ends."""
        end_ms = now_ms + SESSION_MS_MAX
        session = Session(principal, peer, end_ms if ends_at_ms is None else min(end_ms, ends_at_ms))
        token = self._new_token()
        digest = token_digest(token)
        mine = self._of_principal.setdefault(principal, OrderedDict())
        if len(mine) >= self._per_principal_max:
            self._drop(next(iter(mine)))
        elif len(self._sessions) >= self._sessions_max:
            self._drop(next(iter(self._sessions)))
        self._sessions[digest] = session
        self._of_principal.setdefault(principal, OrderedDict())[digest] = None
        return token, session.ends_at_ms - now_ms

    def find(self, token: str, peer: str, now_ms: int) -> Session | None:
        """The session of a token that this peer shows; None when there is none, or it has ended."""
        digest = token_digest(token)
        session = self._sessions.get(digest)
        if session is None or session.peer != peer:
            return None
        if now_ms >= session.ends_at_ms:
            self._drop(digest)
            return None
        self._sessions.move_to_end(digest)
        self._of_principal[session.principal].move_to_end(digest)
        return session

    def _drop(self, digest: bytes) -> None:
        session = self._sessions.pop(digest)
        mine = self._of_principal[session.principal]
        del mine[digest]
        if not mine:
            del self._of_principal[session.principal]


def token_digest(token: str) -> bytes:
    """What is kept of a token."""
    return hashlib.sha256(token.encode()).digest()
