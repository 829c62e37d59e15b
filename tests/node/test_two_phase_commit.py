"""Two-phase commit at a node: the setting, the rights and the level that it needs (docs/semantics.md T29)."""

from __future__ import annotations

from datetime import timedelta
from types import SimpleNamespace
from typing import Any, cast

import grpc
import pytest
from kio.schema.init_producer_id.v6.request import InitProducerIdRequest
from tidegate.coordinator.transaction.events import InitProducerId, PrepareTransaction, ProducerReply
from tidegate.node.data.coordinator_calls import CoordinatorCalls
from tidegate.node.data.two_phase_commit import TwoPhaseCommitService
from tidegate.node.handlers.transactions import init_producer_id
from tidegate.node.serving.broker import Broker
from tidegate.node.serving.requests import RequestContext
from tidegate.proto import jobs_pb2 as pb
from tidegate.security.acls import (
    Acl,
    AclOperation,
    PatternType,
    PermissionType,
    ResourcePattern,
    ResourceType,
)
from tidegate.security.principals import ANONYMOUS
from tidegate.security.records import SecurityRecords
from tidegate.tests.grpc_access import access
from tidegate.wire.api import ApiKey, advertised
from tidegate.wire.errors import ErrorCode, KafkaError

REFUSED = ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED


class Asked:
    """A broker around the handler; `events` reached the coordinator."""

    def __init__(self, *, enabled: bool, may: set[str], level: int = 2) -> None:
        self.events: list[Any] = []
        self.may = may
        self.broker = cast(
            Broker,
            SimpleNamespace(
                configuration=SimpleNamespace(flag=lambda name: enabled),
                permissions=SimpleNamespace(require=self.require),
                transactions=SimpleNamespace(ask=self.ask),
                state=SimpleNamespace(features={"transaction.version": level}),
            ),
        )

    def require(self, _context: RequestContext, subject: str, _name: str) -> None:
        if subject not in self.may:
            raise KafkaError(REFUSED, subject)

    async def ask(self, _name: str, event: Any) -> ProducerReply:
        self.events.append(event)
        return ProducerReply(7, 1, (7, 0) if getattr(event, "keeps_transaction", False) else (-1, -1))

    async def init(self, *, two_phases: bool, keeps: bool) -> Any:
        request = InitProducerIdRequest(
            transactional_id=cast(Any, "t"),
            transaction_timeout=cast(Any, timedelta(seconds=1)),
            enable2_pc=two_phases,
            keep_prepared_txn=keeps,
        )
        context = cast(RequestContext, SimpleNamespace(api_version=6))
        return await init_producer_id.handle(self.broker, context, request)


ALL = {"transactional id", "two-phase commit"}


@pytest.mark.parametrize(
    ("enabled", "may", "level", "two_phases", "keeps", "error"),
    [
        (True, ALL, 2, True, True, ErrorCode.NONE),
        (True, ALL, 2, True, False, ErrorCode.NONE),
        (True, ALL, 2, False, True, ErrorCode.NONE),
        (False, {"transactional id"}, 1, False, False, ErrorCode.NONE),
        (False, ALL, 2, True, False, REFUSED),
        (False, ALL, 2, False, True, REFUSED),
        (True, {"transactional id"}, 2, True, False, REFUSED),
        (True, {"transactional id"}, 2, False, True, REFUSED),
        (True, {"two-phase commit"}, 2, True, True, REFUSED),
        (True, ALL, 1, True, False, ErrorCode.UNSUPPORTED_VERSION),
        (True, ALL, 1, False, True, ErrorCode.UNSUPPORTED_VERSION),
    ],
)
async def test_what_two_phase_commit_needs(
    enabled: bool, may: set[str], level: int, two_phases: bool, keeps: bool, error: ErrorCode
) -> None:
    asked = Asked(enabled=enabled, may=may, level=level)
    answer = await asked.init(two_phases=two_phases, keeps=keeps)
    assert answer["error_code"] == error
    assert (not asked.events) is (error is not ErrorCode.NONE)
    if asked.events:
        assert asked.events == [InitProducerId("t", 1_000, -1, -1, two_phases, keeps)]
        ongoing = answer["ongoing_txn_producer_id"], answer["ongoing_txn_producer_epoch"]
        assert ongoing == ((7, 0) if keeps else (-1, -1))


TWO_RIGHTS = (AclOperation.WRITE, AclOperation.TWO_PHASE_COMMIT)


@pytest.mark.parametrize(
    ("may", "enabled", "lacks"),
    [
        (TWO_RIGHTS, True, ""),
        (TWO_RIGHTS, False, "not enabled"),
        (TWO_RIGHTS[:1], True, "lacks TWO_PHASE_COMMIT"),
        (TWO_RIGHTS[1:], True, "lacks WRITE"),
        ((), True, "lacks WRITE"),
    ],
)
async def test_what_it_needs_to_prepare_a_transaction(
    may: tuple[AclOperation, ...], enabled: bool, lacks: str
) -> None:
    """A client that may not end the transaction may not hold it, either."""
    pattern = ResourcePattern(ResourceType.TRANSACTIONAL_ID, "t", PatternType.LITERAL)
    acls = frozenset(Acl(pattern, str(ANONYMOUS), "*", each, PermissionType.ALLOW) for each in may)
    asked = Asked(enabled=enabled, may=set())
    service = TwoPhaseCommitService(
        cast(Any, asked.broker.configuration),
        cast(Any, asked.broker.transactions),
        access("PLAINTEXT", lambda: SecurityRecords(acls=acls)),
        CoordinatorCalls(cast(Any, None)),
    )
    call = service.PrepareTransaction(
        pb.PrepareTransactionRequest(transactional_id="t", producer_id=7), cast(Any, Called())
    )
    if lacks:
        with pytest.raises(grpc.RpcError, match=lacks):
            await call
        assert not asked.events
    else:
        assert (await call).producer_id == 7
        assert asked.events == [PrepareTransaction("t", 7, 0)]


class Called:
    """The context of a call by a stranger."""

    def peer(self) -> str:
        return "ipv4:127.0.0.1:4000"

    def invocation_metadata(self) -> tuple[()]:
        return ()

    def auth_context(self) -> dict[str, list[bytes]]:
        return {}

    async def abort(self, _code: grpc.StatusCode, details: str, _trailing: object) -> None:
        raise grpc.RpcError(details)


def test_the_unstable_version_is_announced_with_the_setting_alone() -> None:
    (plain,), (unstable,) = (
        [high for key, _, high in advertised(ApiKey, unstable=each) if key == ApiKey.INIT_PRODUCER_ID]
        for each in (False, True)
    )
    assert (plain, unstable) == (5, 6)
