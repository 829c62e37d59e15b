"""Two-phase commit at a node: the setting, the rights and the level that it needs (docs/semantics.md T29)."""

from __future__ import annotations

from datetime import timedelta
from types import SimpleNamespace
from typing import Any, cast

import pytest
from kio.schema.init_producer_id.v6.request import InitProducerIdRequest
from tidegate.coordinator.transaction.events import InitProducerId, ProducerReply
from tidegate.node.handlers.transactions import init_producer_id
from tidegate.node.serving.broker import Broker
from tidegate.node.serving.requests import RequestContext
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
        return ProducerReply(7, 1, (7, 0) if event.keeps_transaction else (-1, -1))

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


def test_the_unstable_version_is_announced_with_the_setting_alone() -> None:
    (plain,), (unstable,) = (
        [high for key, _, high in advertised(ApiKey, unstable=each) if key == ApiKey.INIT_PRODUCER_ID]
        for each in (False, True)
    )
    assert (plain, unstable) == (5, 6)
