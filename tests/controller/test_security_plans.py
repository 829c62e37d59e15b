"""What a request for quotas may ask: limits as Kafka takes them."""

from __future__ import annotations

from types import SimpleNamespace
from typing import cast

import pytest
from tidegate.controller.planning.security import plan_security
from tidegate.controller.state.cluster_state import ClusterState
from tidegate.controller.state.model import METADATA_VERSION, SECURITY_LEVEL
from tidegate.proto import controller_pb2 as rpc
from tidegate.proto import metadata_pb2 as pb
from tidegate.security.records import SecurityRecords

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
