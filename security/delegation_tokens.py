"""Delegation tokens (KIP-48): a user gives them to programs that act as this user for a while.  Pure.

A program authenticates by SCRAM with the token's id as its name, the token's HMAC as its password, and the
extension `tokenauth=true`.  The HMAC is that of the id under the cluster's secret
(`delegation.token.secret.key`): the metadata hold no secret of a token.
"""

from __future__ import annotations

import base64
import hmac
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Final

from ..wire.errors import ErrorCode, KafkaError
from .principals import USER_TYPE, Principal

RENEWERS_MAX: Final = 100
NAMES_BYTES_MAX: Final = 8 * 1024
"""Of a token's owner and renewers together."""


@dataclass(frozen=True, slots=True)
class DelegationToken:
    """One token; times in milliseconds since 1970."""

    token_id: str
    owner: Principal
    requester: Principal
    renewers: tuple[Principal, ...]
    issued_at_ms: int
    expires_at_ms: int
    """Without another renewal."""
    ends_at_ms: int
    """However often it is renewed."""

    def may_be_renewed_by(self, principal: Principal) -> bool:
        """The requester of another's token may not, as in Kafka."""
        return principal in (self.owner, *self.renewers)

    def is_known_to(self, principal: Principal) -> bool:
        """Whether it is described to this principal without a right."""
        return principal in (self.owner, self.requester, *self.renewers)


@dataclass(frozen=True, slots=True)
class TokenSettings:
    """`delegation.token.*`."""

    secret: bytes = field(default=b"", repr=False)
    """Empty: the cluster has no tokens."""
    max_lifetime_ms: int = 604_800_000
    expiry_time_ms: int = 86_400_000
    check_interval_ms: int = 3_600_000


def token_hmac(secret: bytes, token_id: str) -> bytes:
    """64 bytes."""
    return hmac.digest(secret, token_id.encode(), "sha512")


def token_password(secret: bytes, token_id: str) -> str:
    """The SCRAM password of a token."""
    return base64.b64encode(token_hmac(secret, token_id)).decode()


class TokensByHmac:
    """Finds the token of an HMAC, which is computed once for each."""

    def __init__(self, secret: bytes) -> None:
        self._secret = secret
        self._hmacs: dict[str, bytes] = {}
        self._ids: dict[bytes, str] = {}

    def find(self, tokens: Mapping[str, DelegationToken], wanted: bytes) -> DelegationToken:
        """Raises KafkaError."""
        for token_id in self._hmacs.keys() - tokens.keys():
            del self._ids[self._hmacs.pop(token_id)]
        for token_id in tokens.keys() - self._hmacs.keys():
            made = self._hmacs[token_id] = token_hmac(self._secret, token_id)
            self._ids[made] = token_id
        token_id = self._ids.get(wanted, "")
        if token_id not in tokens:
            raise KafkaError(ErrorCode.DELEGATION_TOKEN_NOT_FOUND, "no token has this HMAC")
        return tokens[token_id]


def create_token(
    *,
    token_id: str,
    owner: Principal,
    requester: Principal,
    renewers: Iterable[Principal],
    max_lifetime_ms: int,
    settings: TokenSettings,
    now_ms: int,
) -> DelegationToken:
    """A token as it is asked for; a `max_lifetime_ms` that is not above 0 asks for the longest.  Raises
    KafkaError."""
    others = tuple(renewers)
    if any(each.principal_type != USER_TYPE for each in (owner, *others)):
        raise KafkaError(
            ErrorCode.INVALID_PRINCIPAL_TYPE, "the owner and the renewers of a token are users (User:name)"
        )
    if len(others) > RENEWERS_MAX:
        raise KafkaError(ErrorCode.INVALID_REQUEST, f"a token has at most {RENEWERS_MAX} renewers")
    if sum(len(each.text.encode()) for each in (owner, *others)) > NAMES_BYTES_MAX:
        raise KafkaError(ErrorCode.INVALID_REQUEST, f"a token's names have at most {NAMES_BYTES_MAX} bytes")
    lifetime_ms = settings.max_lifetime_ms
    if max_lifetime_ms > 0:
        lifetime_ms = min(lifetime_ms, max_lifetime_ms)
    ends_at_ms = now_ms + lifetime_ms
    expires_at_ms = min(ends_at_ms, now_ms + settings.expiry_time_ms)
    return DelegationToken(token_id, owner, requester, others, now_ms, expires_at_ms, ends_at_ms)


def renewed(
    token: DelegationToken, by: Principal, period_ms: int, settings: TokenSettings, now_ms: int
) -> DelegationToken:
    """The token with a later end; a `period_ms` that is not above 0 asks for the usual one.  Raises
    KafkaError."""
    _require_valid(token, now_ms)
    _require_owner_or_renewer(token, by)
    period_ms = min(period_ms, settings.expiry_time_ms) if period_ms > 0 else settings.expiry_time_ms
    return replace(token, expires_at_ms=min(token.ends_at_ms, now_ms + period_ms))


def expired(token: DelegationToken, by: Principal, period_ms: int, now_ms: int) -> DelegationToken | None:
    """The token with an end `period_ms` from now on; None, for a period below 0: it is gone at once.  Raises
    KafkaError."""
    _require_owner_or_renewer(token, by)
    if period_ms < 0:
        return None
    _require_valid(token, now_ms)
    return replace(token, expires_at_ms=min(token.ends_at_ms, now_ms + period_ms))


def is_valid(token: DelegationToken, now_ms: int) -> bool:
    return now_ms < token.expires_at_ms


def _require_owner_or_renewer(token: DelegationToken, principal: Principal) -> None:
    if not token.may_be_renewed_by(principal):
        raise KafkaError(
            ErrorCode.DELEGATION_TOKEN_OWNER_MISMATCH, f"{principal} neither owns nor renews the token"
        )


def _require_valid(token: DelegationToken, now_ms: int) -> None:
    if not is_valid(token, now_ms):
        raise KafkaError(ErrorCode.DELEGATION_TOKEN_EXPIRED, f"the token {token.token_id} has expired")
