"""Every request, as every user: a node's answers are those of Kafka 4.1.1.

`data/kafka-4.1.1-permissions.json` has Kafka's answers; `python -m bench.permissions record` asks one anew,
and `make foreign-tools` compares.  Where the answers differ on purpose, `bench/permissions/differences.py`
says why, and so does "How requests are answered without a right" in docs/security.md.
"""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest
from tidegate.bench.permissions.differences import REASONS, reason
from tidegate.bench.permissions.matrix import SETTINGS, asked, by_user
from tidegate.bench.permissions.questions import NOT_RECORDED, QUESTIONS
from tidegate.bench.permissions.users import USERS
from tidegate.security.request_rights import RIGHTS
from tidegate.tests.conftest import LEFT
from tidegate.tests.guarded_nodes import guarded_node
from tidegate.wire.api import TABLE, ApiKey

KAFKA = Path(__file__).with_name("data") / "kafka-4.1.1-permissions.json"
CHANGES = Path(__file__).parents[2] / "CHANGELOG.md"
RECORD = (
    f"run `python -m bench.permissions record {KAFKA.relative_to(CHANGES.parent)}`, with Java 17 and Maven"
)
PAGE = Path(__file__).parents[2] / "docs" / "security.md"
OF_CONNECTIONS = {ApiKey.API_VERSIONS, ApiKey.SASL_HANDSHAKE, ApiKey.SASL_AUTHENTICATE}
"""They need no right: a client sends them before it has a principal."""
OF_TOKENS = {
    ApiKey.CREATE_DELEGATION_TOKEN, ApiKey.RENEW_DELEGATION_TOKEN, ApiKey.EXPIRE_DELEGATION_TOKEN
}  # fmt: skip
"""A refusal has times of -1, which kio does not read."""


@pytest.mark.cluster
@pytest.mark.timeout(300)
async def test_every_user_gets_the_answers_of_kafka(tmp_path: Path) -> None:
    names = [user.name for user in USERS]
    async with guarded_node(tmp_path / "cluster", names, SETTINGS) as address:
        found = await asyncio.to_thread(asked, address)
    recorded = json.loads(KAFKA.read_text())
    own, kafkas = by_user(found), by_user(recorded)
    own = {key: answer for key, answer in own.items() if key[0] not in NOT_RECORDED}
    assert own.keys() == kafkas.keys()
    differing = {key: (own[key], kafkas[key]) for key in own if own[key] != kafkas[key]}
    reasons = {key: reason(key[0], *answers) for key, answers in differing.items()}
    assert {key: differing[key] for key, why in reasons.items() if why is None} == {}
    assert set(reasons.values()) == set(REASONS), "a reason is not needed any more"


def test_every_request_and_every_right_is_asked_for() -> None:
    assert {question.key for question in QUESTIONS} == set(TABLE) - OF_CONNECTIONS - OF_TOKENS
    assert set(RIGHTS) == set(TABLE)


def test_kafka_has_answered_every_question_but_those_that_say_so() -> None:
    recorded, asked = json.loads(KAFKA.read_text()).keys(), {question.label for question in QUESTIONS}
    assert recorded == asked - NOT_RECORDED, f"{RECORD}; without Java, NOT_RECORDED has the label until then"
    assert asked >= NOT_RECORDED
    for label in sorted(NOT_RECORDED):
        print(f"{LEFT}no Kafka has answered {label!r}: {RECORD}")


def test_no_release_has_a_question_that_kafka_has_not_answered() -> None:
    is_released = "\n## Unreleased\n" not in CHANGES.read_text()
    assert not (is_released and NOT_RECORDED), f"before a release: {RECORD}"


def test_the_page_has_every_difference() -> None:
    text = " ".join(PAGE.read_text().split())
    assert [why for why in REASONS if why not in text] == []
