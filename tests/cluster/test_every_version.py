"""Every announced request in every announced version: the answer that Kafka's schemas and semantics ask for,
to the last byte."""

from __future__ import annotations

from dataclasses import fields, is_dataclass
from datetime import datetime, timedelta
from typing import Any

import pytest
from tidegate.node.handlers import HANDLERS
from tidegate.wire import api
from tidegate.wire.api import ApiKey

from . import administration_cases, consumer_group_cases, security_cases
from .protocol_cases import ANY, CASES, World

_REGISTERED = (administration_cases, consumer_group_cases, security_cases)
assert all(each.CASES is CASES for each in _REGISTERED)
pytestmark = [pytest.mark.cluster, pytest.mark.xdist_group("conformance"), pytest.mark.timeout(120)]

# Fetch has its own tests in tests/wire and tests/replication; a token that is refused has times of -1, which
# kio does not read, and tests of its own in tests/cluster/test_delegation_tokens.py.
OF_TOKENS = {ApiKey.CREATE_DELEGATION_TOKEN, ApiKey.RENEW_DELEGATION_TOKEN, ApiKey.EXPIRE_DELEGATION_TOKEN}
WRITTEN_BY_HAND = {ApiKey.FETCH, *OF_TOKENS}
VERSIONS = [
    (ApiKey(key), version)
    for key, _, high in api.advertised(HANDLERS.keys)
    for version in range(api.TABLE[ApiKey(key)].low, high + 1)
    if key not in WRITTEN_BY_HAND
]


def check(answer: Any, pattern: Any, where: str) -> None:
    """Every field of the answer must be in the pattern; what other versions have besides does not matter
    here."""
    if pattern is ANY:
        return
    if isinstance(answer, timedelta):
        answer = round(answer.total_seconds() * 1000)
    elif isinstance(answer, datetime):
        answer = round(answer.timestamp() * 1000)
    if callable(pattern):
        assert pattern(answer), f"{where}: {answer!r}"
    elif is_dataclass(answer):
        for field in fields(answer):
            assert field.name in pattern, f"{where}: the case says nothing about {field.name}"
            check(getattr(answer, field.name), pattern[field.name], f"{where}.{field.name}")
    elif isinstance(answer, tuple):
        assert len(answer) == len(pattern), f"{where}: {answer}"
        for number, (one, its) in enumerate(zip(answer, pattern, strict=True)):
            check(one, its, f"{where}[{number}]")
    else:
        assert answer == pattern, f"{where}: {answer!r} where {pattern!r} was to come"


@pytest.mark.parametrize(
    ("key", "version"), VERSIONS, ids=[f"{key.name}-{version}" for key, version in VERSIONS]
)
async def test_an_ordinary_request_is_answered_as_kafka_does(world: World, key: ApiKey, version: int) -> None:
    request, pattern = await CASES[key](world, version)
    answer = await world.asker.ask(key, version, request)
    check(answer, pattern, f"{key.name} {version}")


async def test_a_wrong_a_missing_and_an_unknown_field_are_seen(world: World) -> None:
    """Ablation: the check above would see each of them."""
    request, pattern = await CASES[ApiKey.METADATA](world, 9)
    answer = await world.asker.ask(ApiKey.METADATA, 9, request)
    check(answer, pattern, "as it is")
    wrong = pattern | {"topics": [pattern["topics"][0] | {"is_internal": True}]}
    forgotten = {name: value for name, value in pattern.items() if name != "cluster_id"}
    for other in (wrong, forgotten, pattern | {"brokers": []}):
        with pytest.raises(AssertionError):
            check(answer, other, "spoilt")
