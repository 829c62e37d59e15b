"""A request of very many names yields the loop while it is answered, also when its client may do nothing: a
refusal costs as much as an answer."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest
from tidegate.node.handlers import HANDLERS
from tidegate.node.serving.permissions import Permissions
from tidegate.node.serving.requests import CooperativeYield, RequestContext
from tidegate.security.records import SecurityRecords
from tidegate.wire.api import ApiKey

NAMES = ["g"] * 1_000
REQUESTS: dict[ApiKey, dict[str, Any]] = {
    ApiKey.CONSUMER_GROUP_DESCRIBE: {"group_ids": NAMES, "include_authorized_operations": False},
    ApiKey.DELETE_GROUPS: {"groups_names": [str(number) for number in range(1_000)]},
    ApiKey.DESCRIBE_GROUPS: {"groups": NAMES},
    ApiKey.DESCRIBE_TRANSACTIONS: {"transactional_ids": NAMES},
    ApiKey.FIND_COORDINATOR: {"coordinator_keys": NAMES},
    ApiKey.OFFSET_FETCH: {"groups": [SimpleNamespace(group_id="g", topics=None)] * 1_000},
}


@pytest.mark.parametrize("key", REQUESTS, ids=lambda key: key.name.lower())
async def test_the_loop_has_its_turns(key: ApiKey) -> None:
    yields = 0

    async def yield_loop() -> None:
        nonlocal yields
        yields += 1

    broker: Any = SimpleNamespace(
        permissions=Permissions(SecurityRecords, is_enabled=True),
        cluster=SimpleNamespace(state=SimpleNamespace(features={"group.version": 1})),
    )
    context = RequestContext(key, 9, 1, "c", "h", yield_loop)
    answer = await HANDLERS.decoded[key](broker, context, SimpleNamespace(**REQUESTS[key]))
    (entries,) = (each for each in cast(dict[str, Any], answer).values() if isinstance(each, list))
    assert len(entries) == 1_000
    assert all(each["error_code"] for each in entries)
    assert yields == 1_000 // CooperativeYield.ENTRIES - 1
