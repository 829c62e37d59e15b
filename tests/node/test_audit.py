"""The audit log says what was refused and what was changed, and no client fills the disk with it."""

from __future__ import annotations

import json
import logging
import re
from types import SimpleNamespace
from typing import Any

import pytest
from tidegate.node.handlers import HANDLERS
from tidegate.node.serving.audit import (
    AUDITED,
    CHANGES_MAX,
    PRINCIPALS_MAX,
    REFUSALS_MAX,
    RESOURCE_LENGTH_MAX,
    WINDOW_S,
    Audit,
)
from tidegate.node.serving.permissions import Permissions
from tidegate.node.serving.requests import RequestContext
from tidegate.runtime.clock import ManualClock
from tidegate.runtime.logs import JsonFormatter, TextFormatter
from tidegate.security.acls import AclOperation, ResourceType
from tidegate.security.principals import Principal
from tidegate.security.records import SecurityRecords
from tidegate.wire import codec
from tidegate.wire.api import TABLE, ApiKey
from tidegate.wire.schema import request_class, response_class, shape_of

from .test_handler_errors import fields_of


class Lines(logging.Handler):
    """(event, fields) of every line."""

    def __init__(self) -> None:
        super().__init__()
        self.lines: list[tuple[str, dict[str, Any]]] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append((record.msg, vars(record)["fields"]))

    def of(self, event: str) -> list[dict[str, Any]]:
        return [fields for name, fields in self.lines if name == event]


@pytest.fixture
def lines(monkeypatch: pytest.MonkeyPatch) -> Lines:
    logger, found = logging.getLogger("audit"), Lines()
    monkeypatch.setattr(logger, "handlers", [found])
    monkeypatch.setattr(logger, "level", logging.INFO)
    return found


def context(key: ApiKey, user: str = "alice") -> RequestContext:
    authentication: Any = SimpleNamespace(principal=Principal("User", user))
    return RequestContext(
        key, 1, 1, "c", "10.0.0.7", authentication=authentication, listener_name="SASL_SSL"
    )  # fmt: skip


def refuse(audit: Audit, user: str = "alice", times: int = 1) -> None:
    for _ in range(times):
        audit.refused(context(ApiKey.PRODUCE, user), AclOperation.WRITE, ResourceType.TOPIC, "payments")


def test_a_refusal_says_what_lacked_which_right(lines: Lines) -> None:
    audit = Audit(ManualClock())
    permissions = Permissions(SecurityRecords, is_enabled=True, on_refused=audit.refused)
    assert not permissions.allows(context(ApiKey.PRODUCE), "topic", "payments")
    assert lines.lines == [
        (
            "refused",
            {
                "principal": "User:alice", "listener": "SASL_SSL", "address": "10.0.0.7",
                "request": "produce", "operation": "write", "resource": "topic:payments",
            },
        )
    ]  # fmt: skip


def test_what_a_client_does_not_see_is_no_refusal(lines: Lines) -> None:
    permissions = Permissions(SecurityRecords, is_enabled=True, on_refused=Audit(ManualClock()).refused)
    assert permissions.allowed(context(ApiKey.METADATA), "any topic", ["payments"]) == []
    assert not permissions.allows(context(ApiKey.CREATE_TOPICS), "cluster")
    assert not permissions.may(context(ApiKey.METADATA), AclOperation.READ, ResourceType.TOPIC, "payments")
    assert lines.lines == []


def test_a_client_that_is_refused_all_the_time_does_not_fill_the_disk(lines: Lines) -> None:
    clock = ManualClock()
    audit = Audit(clock)
    refuse(audit, times=100_000)
    assert len(lines.lines) == REFUSALS_MAX
    refuse(audit, "bob")
    assert lines.lines[-1][1]["principal"] == "User:bob"
    clock.advance(WINDOW_S)
    assert lines.of("more_refused") == [{"principal": "User:alice", "produce": 100_000 - REFUSALS_MAX}]
    refuse(audit)
    assert lines.lines[-1][0] == "refused"
    clock.advance(WINDOW_S)
    assert len(lines.of("more_refused")) == 1


def test_very_many_principals_share_one_account(lines: Lines) -> None:
    clock = ManualClock()
    audit = Audit(clock)
    for number in range(PRINCIPALS_MAX + 1000):
        refuse(audit, f"user-{number}", times=2)
    assert len(lines.lines) == 2 * PRINCIPALS_MAX + REFUSALS_MAX
    clock.advance(WINDOW_S)
    assert lines.of("more_refused") == [{"principal": "others", "produce": 2000 - REFUSALS_MAX}]


def test_the_counts_of_the_last_window_are_written_when_the_node_stops(lines: Lines) -> None:
    audit = Audit(ManualClock())
    refuse(audit, times=REFUSALS_MAX + 1)
    audit.close()
    assert lines.of("more_refused") == [{"principal": "User:alice", "produce": 1}]


CASES: dict[ApiKey, tuple[Any, dict[str, Any], list[tuple[str, str]]]] = {
    ApiKey.CREATE_TOPICS: (
        None,
        {
            "topics": [
                {"name": name, "error_code": code} for name, code in (("a", 0), ("b", 36), ("refused", 29))
            ]
        },
        [("topic:a", "none"), ("topic:b", "topic_already_exists")],
    ),
    ApiKey.DELETE_RECORDS: (
        None,
        {"topics": [{"name": "a", "partitions": [{"error_code": 0}, {"error_code": 3}]}]},
        [("topic:a", "unknown_topic_or_partition")],
    ),
    ApiKey.INCREMENTAL_ALTER_CONFIGS: (
        None,
        {"responses": [{"resource_type": 4, "resource_name": "1", "error_code": 0}]},
        [("broker:1", "none")],
    ),
    ApiKey.CREATE_ACLS: (
        SimpleNamespace(
            creations=[
                SimpleNamespace(
                    resource_type=2, resource_name="pay", resource_pattern_type=4, principal="User:bob",
                    host="*", operation=4, permission_type=3,
                )
            ]
        ),
        {"results": [{"error_code": 0}]},
        [("acl:allow User:bob from * write prefixed topic:pay", "none")],
    ),
    ApiKey.DELETE_ACLS: (
        None,
        {
            "filter_results": [
                {"error_code": 42, "matching_acls": []},
                {
                    "error_code": 0,
                    "matching_acls": [
                        {
                            "resource_type": 4, "resource_name": "kafka-cluster", "pattern_type": 3,
                            "principal": "User:bob", "host": "10.0.0.1", "operation": 2,
                            "permission_type": 2, "error_code": 0,
                        }
                    ],
                },
            ]
        },
        [
            ("acl:", "invalid_request"),
            ("acl:deny User:bob from 10.0.0.1 all literal cluster:kafka-cluster", "none"),
        ],
    ),
    ApiKey.ALTER_CLIENT_QUOTAS: (
        None,
        {"entries": [{"entity": [{"entity_type": "user", "entity_name": None}], "error_code": 0}]},
        [("quota:user=None", "none")],
    ),
    ApiKey.OFFSET_DELETE: (
        SimpleNamespace(group_id="g"),
        {"error_code": 0, "topics": [{"name": "a", "partitions": [{"error_code": 0}]}]},
        [("group:g topic:a", "none")],
    ),
    ApiKey.UNREGISTER_BROKER: (
        SimpleNamespace(broker_id=7),
        {"error_code": 102},
        [("broker:7", "broker_id_not_registered")],
    ),
}  # fmt: skip


@pytest.mark.parametrize("key", CASES, ids=lambda key: key.name)
def test_a_change_names_its_resources_and_outcomes(key: ApiKey, lines: Lines) -> None:
    request, answer, wanted = CASES[key]
    Audit(ManualClock()).answered(context(key, "root"), request, answer)
    found = lines.of("changed")
    assert [(each["resource"], each["outcome"]) for each in found] == wanted
    assert {each["request"] for each in found} == {key.name.lower()}
    assert {each["principal"] for each in found} == {"User:root"}


@pytest.mark.parametrize("key", sorted(AUDITED), ids=lambda key: ApiKey(key).name)
def test_every_audited_request_is_read_as_its_schema_has_it(key: ApiKey, lines: Lines) -> None:
    """One resource in the request, one in the answer: one line."""
    for version in range(TABLE[key].low, TABLE[key].high + 1):
        body = codec.request(key, version, fields_of(key, shape_of(request_class(key, version))))
        request = codec.decode_request_body(key, version, body, 0)
        answer = fields_of(key, shape_of(response_class(key, TABLE[key].high)))
        lines.lines.clear()
        Audit(ManualClock()).answered(context(key), request, answer)
        assert len(lines.of("changed")) == 1


def test_no_line_has_the_secret_of_a_token(lines: Lines) -> None:
    """It is what a program logs in with: the answer to the one that asks for a token has it, and the request
    that renews or ends one."""
    audit, request = Audit(ManualClock()), SimpleNamespace(hmac=b"s3cret")
    made = {
        "error_code": 0, "token_id": "id", "principal_type": "User", "principal_name": "bob",
        "hmac": b"s3cret",
    }  # fmt: skip
    audit.answered(context(ApiKey.CREATE_DELEGATION_TOKEN), None, made)
    for key in (ApiKey.RENEW_DELEGATION_TOKEN, ApiKey.EXPIRE_DELEGATION_TOKEN):
        audit.answered(context(key), request, {"error_code": 0})
    assert [each["resource"] for each in lines.of("changed")] == ["token:id of User:bob", "token:", "token:"]
    assert "s3cret" not in repr(lines.lines)


def test_a_line_has_little_of_a_long_name(lines: Lines) -> None:
    audit = Audit(ManualClock())
    audit.refused(context(ApiKey.PRODUCE), AclOperation.WRITE, ResourceType.TOPIC, "x" * 30_000)
    audit.answered(
        context(ApiKey.CREATE_TOPICS), None, {"topics": [{"name": "x" * 30_000, "error_code": 17}]}
    )
    assert [len(fields["resource"]) for _, fields in lines.lines] == [RESOURCE_LENGTH_MAX] * 2


@pytest.mark.parametrize(
    "name", ["x\naudit refused principal=User:bob \x1b[2J\u2028", "x\nUser:bob", "x\x1b[2J", 'x"User:bob']
)
def test_a_name_makes_no_line_of_its_own(lines: Lines, name: str) -> None:
    """Nor a field: a forged line would accuse another user."""
    Audit(ManualClock()).refused(context(ApiKey.PRODUCE, name), AclOperation.WRITE, ResourceType.TOPIC, name)
    ((event, fields),) = lines.lines
    record = logging.makeLogRecord({"msg": event, "fields": fields, "name": "audit"})
    text = TextFormatter().format(record)
    assert text.isprintable()
    assert "User:bob" not in re.sub(r'"(?:\\.|[^"\\])*"', "", text)
    as_json = JsonFormatter().format(record)
    assert as_json.isprintable()
    assert json.loads(as_json)["principal"] == f"User:{name}"


def test_what_is_only_validated_is_no_change(lines: Lines) -> None:
    request, answer = SimpleNamespace(validate_only=True), CASES[ApiKey.CREATE_TOPICS][1]
    Audit(ManualClock()).answered(context(ApiKey.CREATE_TOPICS), request, answer)
    assert lines.lines == []


def test_changes_are_counted_beyond_their_limit(lines: Lines) -> None:
    audit = Audit(ManualClock())
    answer = {"topics": [{"name": str(n), "error_code": 0} for n in range(CHANGES_MAX + 5)]}
    audit.answered(context(ApiKey.CREATE_TOPICS), None, answer)
    audit.close()
    assert len(lines.of("changed")) == CHANGES_MAX
    assert lines.of("more_changed") == [{"principal": "User:alice", "create_topics:none": 5}]


READ_OR_CHANGE_NO_METADATA = {
    ApiKey.ADD_OFFSETS_TO_TXN, ApiKey.ADD_PARTITIONS_TO_TXN, ApiKey.API_VERSIONS,
    ApiKey.CONSUMER_GROUP_DESCRIBE, ApiKey.CONSUMER_GROUP_HEARTBEAT, ApiKey.DESCRIBE_ACLS,
    ApiKey.DESCRIBE_CLIENT_QUOTAS, ApiKey.DESCRIBE_CLUSTER, ApiKey.DESCRIBE_CONFIGS,
    ApiKey.DESCRIBE_DELEGATION_TOKEN, ApiKey.DESCRIBE_GROUPS, ApiKey.DESCRIBE_LOG_DIRS,
    ApiKey.DESCRIBE_PRODUCERS, ApiKey.DESCRIBE_QUORUM, ApiKey.DESCRIBE_TOPIC_PARTITIONS,
    ApiKey.DESCRIBE_TRANSACTIONS, ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS, ApiKey.END_TXN, ApiKey.FETCH,
    ApiKey.FIND_COORDINATOR, ApiKey.GET_TELEMETRY_SUBSCRIPTIONS, ApiKey.HEARTBEAT,
    ApiKey.INIT_PRODUCER_ID, ApiKey.JOIN_GROUP, ApiKey.LEAVE_GROUP, ApiKey.LIST_CONFIG_RESOURCES,
    ApiKey.LIST_GROUPS, ApiKey.LIST_OFFSETS, ApiKey.LIST_PARTITION_REASSIGNMENTS,
    ApiKey.LIST_TRANSACTIONS, ApiKey.METADATA, ApiKey.OFFSET_COMMIT, ApiKey.OFFSET_FETCH,
    ApiKey.OFFSET_FOR_LEADER_EPOCH, ApiKey.PRODUCE, ApiKey.PUSH_TELEMETRY, ApiKey.SASL_AUTHENTICATE,
    ApiKey.SASL_HANDSHAKE, ApiKey.SYNC_GROUP, ApiKey.TXN_OFFSET_COMMIT, ApiKey.WRITE_TXN_MARKERS,
}  # fmt: skip


def test_every_request_is_audited_or_known_to_change_no_metadata() -> None:
    assert set(AUDITED) == HANDLERS.keys - READ_OR_CHANGE_NO_METADATA
