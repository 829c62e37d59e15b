"""What a request makes of delegation tokens (KIP-48), and which of them have ended.  Pure."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace

from ...proto import controller_pb2 as rpc
from ...proto import metadata_pb2 as pb
from ...security.delegation_tokens import (
    DelegationToken,
    TokenSettings,
    create_token,
    expired,
    is_valid,
    renewed,
)
from ...security.principals import InvalidPrincipal, Principal
from ...wire.errors import ErrorCode, KafkaError
from ..state.cluster_state import ClusterState
from ..state.features import require_level
from ..state.model import SECURITY_LEVEL
from ..state.security_commands import token_record
from .plan import Plan

ENDED_AT_ONCE_MAX = 1000
"""In one plan."""
TOKENS_OF_REQUESTER_MAX = 2000
"""A tenth of what the cluster holds: every user may ask for tokens."""


@dataclass(slots=True)
class TokenPlan(Plan):
    """The plan of a request, and the token that it leads to."""

    token: pb.TokenRecord = field(default_factory=pb.TokenRecord)


def plan_delegation_token(
    state: ClusterState,
    request: rpc.ChangeDelegationTokenRequest,
    settings: TokenSettings,
    find: Callable[[bytes], DelegationToken],
    now_ms: int,
    *,
    applied_before: bool,
) -> TokenPlan:
    """`find(hmac)` raises KafkaError; `applied_before`: the request is a copy of one that is done.  Raises
    KafkaError."""
    if not settings.secret:
        raise KafkaError(ErrorCode.DELEGATION_TOKEN_AUTH_DISABLED, "set delegation.token.secret.key")
    require_level(state.features, SECURITY_LEVEL)
    try:
        requester = Principal.parse(request.requester)
        if applied_before:
            return TokenPlan(token=_as_it_is(state, request, find, now_ms))
        if request.HasField("create"):
            return _created(state, request, requester, settings, now_ms)
        kind = request.WhichOneof("kind")
        end: rpc.TokenEnd = request.renew if kind == "renew" else request.expire
        token = find(end.hmac)
        if kind == "renew":
            return _set(request, renewed(token, requester, end.period_ms, settings, now_ms))
        ended = expired(token, requester, end.period_ms, now_ms)
    except InvalidPrincipal as error:
        raise KafkaError(ErrorCode.INVALID_REQUEST, str(error)) from error
    if ended is not None:
        return _set(request, ended)
    gone = pb.Operation(change_delegation_tokens=pb.ChangeDelegationTokens(remove=[token.token_id]))
    return TokenPlan(
        [gone], "remove a delegation token", request.request_id,
        token_record(replace(token, expires_at_ms=now_ms)),
    )  # fmt: skip


def plan_ended_tokens(state: ClusterState, now_ms: int) -> Plan:
    """Removes tokens that no client can use any more."""
    ended = [token.token_id for token in state.security.tokens.values() if not is_valid(token, now_ms)]
    if not ended:
        return Plan()
    change = pb.ChangeDelegationTokens(remove=sorted(ended)[:ENDED_AT_ONCE_MAX])
    return Plan([pb.Operation(change_delegation_tokens=change)], "delegation tokens have ended")


def _as_it_is(
    state: ClusterState,
    request: rpc.ChangeDelegationTokenRequest,
    find: Callable[[bytes], DelegationToken],
    now_ms: int,
) -> pb.TokenRecord:
    """The token of a request that is done: a late copy brings no token back, and moves no end."""
    token: DelegationToken | None
    if request.HasField("create"):
        token = state.security.tokens.get(request.create.token_id)
    else:
        end = request.renew if request.HasField("renew") else request.expire
        try:
            token = find(end.hmac)
        except KafkaError as error:
            if error.code is not ErrorCode.DELEGATION_TOKEN_NOT_FOUND:
                raise
            token = None
    return pb.TokenRecord(expires_at_ms=now_ms) if token is None else token_record(token)


def _created(
    state: ClusterState,
    request: rpc.ChangeDelegationTokenRequest,
    requester: Principal,
    settings: TokenSettings,
    now_ms: int,
) -> TokenPlan:
    wanted = request.create
    present = state.security.tokens.get(wanted.token_id)
    if present is not None:  # the first copy of the request has made it
        return TokenPlan(token=token_record(present))
    if _count_of(state, requester) >= TOKENS_OF_REQUESTER_MAX:
        raise KafkaError(
            ErrorCode.INVALID_REQUEST,
            f"{requester} has {TOKENS_OF_REQUESTER_MAX} tokens: let some of them end",
        )
    token = create_token(
        token_id=wanted.token_id,
        owner=Principal.parse(wanted.owner),
        requester=requester,
        renewers=[Principal.parse(each) for each in wanted.renewers],
        max_lifetime_ms=wanted.max_lifetime_ms,
        settings=settings,
        now_ms=now_ms,
    )
    return _set(request, token)


def _count_of(state: ClusterState, requester: Principal) -> int:
    return sum(token.requester == requester for token in state.security.tokens.values())


def _set(request: rpc.ChangeDelegationTokenRequest, token: DelegationToken) -> TokenPlan:
    record = token_record(token)
    change = pb.Operation(change_delegation_tokens=pb.ChangeDelegationTokens(set=[record]))
    return TokenPlan([change], "a delegation token", request.request_id, record)
