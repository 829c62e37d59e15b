"""What requests for ACLs, credentials and quotas may ask: as Kafka takes them, and nothing without bound."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest
from tidegate.controller.planning.security import NAME_BYTES_MAX, plan_security
from tidegate.controller.state.cluster_state import ClusterState
from tidegate.controller.state.model import METADATA_VERSION, SECURITY_LEVEL
from tidegate.proto import controller_pb2 as rpc
from tidegate.proto import metadata_pb2 as pb
from tidegate.security.acls import AclOperation, PatternType, PermissionType, ResourceType
from tidegate.security.records import SecurityRecords
from tidegate.security.scram import ITERATIONS_MAX, ITERATIONS_MIN
from tidegate.wire.errors import ErrorCode, KafkaError

STATE = cast(
    ClusterState,
    SimpleNamespace(features={METADATA_VERSION: SECURITY_LEVEL}, security=SecurityRecords()),
)


@pytest.mark.parametrize(
    ("entity_type", "name", "limit", "message"),
    [
        ("user", "producer_byte_rate", 1024.0, ""),
        ("user", "producer_byte_rate", 0.0, "Quota producer_byte_rate must be greater than 0"),
        ("user", "consumer_byte_rate", float("nan"), "Quota consumer_byte_rate must be greater than 0"),
        ("user", "consumer_byte_rate", 1048576.5, "consumer_byte_rate cannot be a fractional value."),
        (
            "user",
            "producer_byte_rate",
            1e19,
            "Proposed value for producer_byte_rate is too large for a LONG.",
        ),
        ("user", "request_percentage", 0.5, ""),
        (
            "user",
            "request_percentage",
            float("inf"),
            "Proposed value for request_percentage is too large for",
        ),
        ("user", "connection_creation_rate", 1.0, "Invalid configuration key connection_creation_rate"),
        ("ip", "connection_creation_rate", 7.0, ""),
        (
            "ip",
            "connection_creation_rate",
            3e9,
            "Proposed value for connection_creation_rate is too large for",
        ),
        ("ip", "producer_byte_rate", 7.0, "Invalid configuration key producer_byte_rate"),
    ],
)
def test_limits_are_as_kafka_takes_them(entity_type: str, name: str, limit: float, message: str) -> None:
    quota = rpc.QuotaAlteration(entity=[pb.QuotaEntityPart(type=entity_type, name="10.0.0.1")])
    quota.set[name] = limit
    plan = plan_security(STATE, rpc.ChangeSecurityRequest(quotas=[quota]), applied_before=False)
    (result,) = plan.results
    assert result.message.startswith(message)
    assert bool(result.message) is bool(message)
    assert bool(plan.operations) is not bool(message)


def result_of(request: rpc.ChangeSecurityRequest) -> tuple[ErrorCode, str]:
    """Of a request with one entry, which makes an operation if it is not refused."""
    plan = plan_security(STATE, request, applied_before=False)
    (result,) = plan.results
    assert bool(plan.operations) is not bool(result.error)
    return ErrorCode(result.error), result.message


LONG = "\u00fc" * (NAME_BYTES_MAX // 2) + "x"


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({}, ""),
        ({"name": "*"}, ""),
        ({"pattern_type": PatternType.PREFIXED}, ""),
        ({"permission": PermissionType.DENY, "operation": AclOperation.ALL}, ""),
        ({"name": LONG[:-1]}, ""),
        ({"resource_type": 99}, "the ACL has an unknown number"),
        ({"operation": 99}, "the ACL has an unknown number"),
        ({"permission": 99}, "the ACL has an unknown number"),
        ({"pattern_type": 99}, "the ACL has an unknown number"),
        ({"pattern_type": PatternType.MATCH}, "Invalid pattern type MATCH"),
        ({"pattern_type": PatternType.ANY}, "Invalid pattern type ANY"),
        ({"permission": PermissionType.ANY}, "Invalid permission type ANY"),
        ({"permission": PermissionType.UNKNOWN}, "Invalid permission type UNKNOWN"),
        ({"resource_type": ResourceType.ANY}, "Invalid resource type ANY"),
        ({"operation": AclOperation.ANY}, "Invalid operation ANY for TOPIC"),
        ({"operation": AclOperation.CLUSTER_ACTION}, "Invalid operation CLUSTER_ACTION for TOPIC"),
        ({"name": ""}, "Resource name should not be empty"),
        (
            {"resource_type": ResourceType.CLUSTER, "operation": AclOperation.ALTER},
            "The only valid name for the CLUSTER resource is kafka-cluster",
        ),
        ({"host": ""}, "Host should not be empty"),
        ({"name": LONG}, "a name of an ACL has at most 1024 bytes"),
        ({"host": LONG}, "a name of an ACL has at most 1024 bytes"),
        ({"principal": f"User:{LONG}"}, "a name of an ACL has at most 1024 bytes"),
        ({"principal": "alice"}, "Could not parse principal from `alice`"),
        ({"principal": ":alice"}, "Could not parse principal from `:alice`"),
    ],
)
def test_an_acl_names_what_kafka_has(fields: dict[str, Any], message: str) -> None:
    record = {
        "resource_type": ResourceType.TOPIC, "pattern_type": PatternType.LITERAL, "name": "payments",
        "principal": "User:alice", "host": "*", "operation": AclOperation.READ,
        "permission": PermissionType.ALLOW, **fields,
    }  # fmt: skip
    code, said = result_of(rpc.ChangeSecurityRequest(create_acls=[pb.AclRecord(**record)]))
    assert code is (ErrorCode.INVALID_REQUEST if message else ErrorCode.NONE)
    assert said.startswith(message)


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({}, ErrorCode.NONE),
        ({"iterations": ITERATIONS_MAX}, ErrorCode.NONE),
        ({"user": ""}, ErrorCode.UNACCEPTABLE_CREDENTIAL),
        ({"user": LONG}, ErrorCode.UNACCEPTABLE_CREDENTIAL),
        ({"mechanism": 0}, ErrorCode.UNSUPPORTED_SASL_MECHANISM),
        ({"mechanism": 2}, ErrorCode.UNACCEPTABLE_CREDENTIAL),
        ({"iterations": ITERATIONS_MIN - 1}, ErrorCode.UNACCEPTABLE_CREDENTIAL),
        ({"iterations": ITERATIONS_MAX + 1}, ErrorCode.UNACCEPTABLE_CREDENTIAL),
        ({"salt": b""}, ErrorCode.UNACCEPTABLE_CREDENTIAL),
        ({"salt": bytes(NAME_BYTES_MAX + 1)}, ErrorCode.UNACCEPTABLE_CREDENTIAL),
        ({"stored_key": b"short"}, ErrorCode.UNACCEPTABLE_CREDENTIAL),
        ({"server_key": b""}, ErrorCode.UNACCEPTABLE_CREDENTIAL),
    ],
)
def test_a_credential_costs_an_attacker_enough_and_the_cluster_little(
    fields: dict[str, Any], expected: ErrorCode
) -> None:
    record = {
        "user": "alice", "mechanism": 1, "salt": b"salt", "stored_key": bytes(32), "server_key": bytes(32),
        "iterations": ITERATIONS_MIN, **fields,
    }  # fmt: skip
    code, said = result_of(rpc.ChangeSecurityRequest(set_scram=[pb.ScramRecord(**record)]))
    assert code is expected
    assert bool(said) is (expected is not ErrorCode.NONE)


def test_a_users_credential_changes_once_in_a_request() -> None:
    twice = [pb.ScramRecord(user="alice", mechanism=mechanism) for mechanism in (1, 2)]
    plan = plan_security(STATE, rpc.ChangeSecurityRequest(remove_scram=twice), applied_before=False)
    assert [each.error for each in plan.results] == [ErrorCode.DUPLICATE_RESOURCE] * 2
    assert result_of(rpc.ChangeSecurityRequest(remove_scram=twice[:1]))[0] is ErrorCode.RESOURCE_NOT_FOUND


@pytest.mark.parametrize(
    ("parts", "message"),
    [
        ([("user", "a"), ("user", "b")], "Duplicate entity types in a client quota entity"),
        ([("user", LONG)], "the name of an entity has at most 1024 bytes"),
        ([("client-id", LONG)], "the name of an entity has at most 1024 bytes"),
        ([("host", "a")], "Unhandled client quota entity type: host"),
        ([], "Invalid empty client quota entity"),
        ([("ip", "10.0.0.1"), ("user", "a")], "Invalid quota entity combination"),
    ],
)
def test_an_entity_of_a_quota_is_one_that_kafka_has(parts: list[tuple[str, str]], message: str) -> None:
    entity = [pb.QuotaEntityPart(type=each, name=name) for each, name in parts]
    quota = rpc.QuotaAlteration(entity=entity)
    quota.set["producer_byte_rate"] = 1.0
    code, said = result_of(rpc.ChangeSecurityRequest(quotas=[quota]))
    assert code is ErrorCode.INVALID_REQUEST
    assert said.startswith(message)


GOOD = rpc.ChangeSecurityRequest(
    create_acls=[
        pb.AclRecord(
            resource_type=ResourceType.TOPIC, pattern_type=PatternType.LITERAL, name="payments",
            principal="User:alice", host="*", operation=AclOperation.READ, permission=PermissionType.ALLOW,
        )
    ],
)  # fmt: skip


def test_what_is_validated_only_or_done_before_makes_no_operation() -> None:
    assert plan_security(STATE, GOOD, applied_before=False).operations
    assert not plan_security(STATE, GOOD, applied_before=True).operations
    validated = rpc.ChangeSecurityRequest(create_acls=GOOD.create_acls, validate_only=True)
    assert not plan_security(STATE, validated, applied_before=False).operations


def test_below_its_level_a_cluster_has_no_security_records() -> None:
    old = cast(ClusterState, SimpleNamespace(features={METADATA_VERSION: SECURITY_LEVEL - 1}))
    with pytest.raises(KafkaError) as refused:
        plan_security(old, GOOD, applied_before=False)
    assert refused.value.code is ErrorCode.UNSUPPORTED_VERSION
