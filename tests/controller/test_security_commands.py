"""The metadata's ACLs, credentials, tokens and quotas: commands, refusals, and the snapshot."""

from __future__ import annotations

from typing import Any

import pytest
from tidegate.controller.state import security_commands
from tidegate.controller.state.cluster_state import ClusterState
from tidegate.controller.state.model import SECURITY_LEVEL
from tidegate.proto import metadata_pb2 as pb
from tidegate.security.acls import AclOperation, PatternType, PermissionType, ResourceType
from tidegate.security.scram import ScramMechanism
from tidegate.wire.errors import ErrorCode

ACL = pb.AclRecord(
    resource_type=ResourceType.TOPIC, pattern_type=PatternType.LITERAL, name="payments",
    principal="User:alice", host="*", operation=AclOperation.READ, permission=PermissionType.ALLOW,
)  # fmt: skip
SCRAM = pb.ScramRecord(
    user="alice", mechanism=1, salt=b"salt", stored_key=bytes(32), server_key=bytes(32), iterations=4096
)
TOKEN = pb.TokenRecord(
    token_id="t1", owner="User:alice", requester="User:bob", renewers=["User:carol"], issued_at_ms=1,
    expires_at_ms=2, ends_at_ms=3,
)  # fmt: skip
USER = pb.QuotaEntityPart(type="user", name="alice")
DEFAULT_CLIENT = pb.QuotaEntityPart(type="client-id", is_default=True)
QUOTA = pb.QuotaRecord(entity=[USER, DEFAULT_CLIENT], kind="producer_byte_rate", limit=1024.5)


class Log:
    """A state, and the index of its last entry."""

    def __init__(self, level: int = SECURITY_LEVEL) -> None:
        self.state = ClusterState()
        feature = pb.Feature(name="tidegate.metadata.version", level=level)
        self.apply(bootstrap=pb.Bootstrap(cluster_id="c", features=[feature]))

    def apply(self, **operation: Any) -> ErrorCode:
        command = pb.Command(operations=[pb.Operation(**operation)])
        return self.state.apply(self.state.index + 1, 1, command.SerializeToString()).error


def changed(record: Any, **fields: Any) -> Any:
    copy = type(record)()
    copy.CopyFrom(record)
    for name, value in fields.items():
        setattr(copy, name, value)
    return copy


def filled() -> Log:
    log = Log()
    assert log.apply(change_acls=pb.ChangeAcls(add=[ACL])) is ErrorCode.NONE
    assert log.apply(change_scram_credentials=pb.ChangeScramCredentials(set=[SCRAM])) is ErrorCode.NONE
    assert log.apply(change_delegation_tokens=pb.ChangeDelegationTokens(set=[TOKEN])) is ErrorCode.NONE
    assert log.apply(change_client_quotas=pb.ChangeClientQuotas(set=[QUOTA])) is ErrorCode.NONE
    return log


def test_records_are_set_and_removed() -> None:
    log = filled()
    records = log.state.security
    assert {security_commands.acl_record(acl).name for acl in records.acls} == {"payments"}
    assert records.scram["alice", ScramMechanism.SHA_256].iterations == 4096
    assert str(records.tokens["t1"].renewers[0]) == "User:carol"
    assert list(records.quotas.values()) == [1024.5]
    log.apply(change_acls=pb.ChangeAcls(remove=[ACL]))
    log.apply(
        change_scram_credentials=pb.ChangeScramCredentials(remove=[pb.ScramRecord(user="alice", mechanism=1)])
    )
    log.apply(change_delegation_tokens=pb.ChangeDelegationTokens(remove=["t1"]))
    log.apply(change_client_quotas=pb.ChangeClientQuotas(remove=[QUOTA]))
    assert security_commands.encode(log.state.security) is None
    assert records.tokens, "what was held before stays what it was"


def test_a_command_that_is_applied_again_changes_nothing() -> None:
    log = filled()
    before = log.state.security
    log.apply(change_acls=pb.ChangeAcls(add=[ACL, ACL]))
    log.apply(change_scram_credentials=pb.ChangeScramCredentials(set=[SCRAM]))
    log.apply(change_acls=pb.ChangeAcls(remove=[changed(ACL, name="other")]))
    log.apply(change_delegation_tokens=pb.ChangeDelegationTokens(remove=["t2"]))
    assert log.state.security == before


def test_a_snapshot_holds_everything_in_one_order() -> None:
    log, other = filled(), filled()
    more = [changed(ACL, name=name) for name in ("b", "a", "c")]
    log.apply(change_acls=pb.ChangeAcls(add=more))
    other.apply(change_acls=pb.ChangeAcls(add=more[::-1]))
    assert log.state.encode() == other.state.encode()
    restored = ClusterState()
    restored.restore(log.state.encode())
    assert restored.security == log.state.security
    assert restored.state_hash() == log.state.state_hash()
    assert log.state.copy().security is log.state.security


@pytest.mark.parametrize(
    "operation",
    [
        {"change_acls": pb.ChangeAcls(add=[changed(ACL, resource_type=99)])},
        {"change_acls": pb.ChangeAcls(add=[changed(ACL, pattern_type=PatternType.MATCH)])},
        {"change_acls": pb.ChangeAcls(add=[changed(ACL, principal="alice")])},
        {"change_acls": pb.ChangeAcls(add=[changed(ACL, name="")])},
        {"change_acls": pb.ChangeAcls(add=[ACL, changed(ACL, operation=99)])},
        {"change_scram_credentials": pb.ChangeScramCredentials(set=[changed(SCRAM, mechanism=3)])},
        {"change_scram_credentials": pb.ChangeScramCredentials(set=[changed(SCRAM, mechanism=2)])},
        {"change_scram_credentials": pb.ChangeScramCredentials(set=[changed(SCRAM, iterations=0)])},
        {"change_scram_credentials": pb.ChangeScramCredentials(set=[changed(SCRAM, user="")])},
        {"change_scram_credentials": pb.ChangeScramCredentials(set=[changed(SCRAM, salt=b"")])},
        {"change_scram_credentials": pb.ChangeScramCredentials(remove=[changed(SCRAM, mechanism=0)])},
        {"change_delegation_tokens": pb.ChangeDelegationTokens(set=[changed(TOKEN, owner="x")])},
        {"change_delegation_tokens": pb.ChangeDelegationTokens(set=[changed(TOKEN, token_id="")])},
        {"change_client_quotas": pb.ChangeClientQuotas(set=[changed(QUOTA, kind="bytes")])},
        {"change_client_quotas": pb.ChangeClientQuotas(set=[changed(QUOTA, limit=0)])},
        {"change_client_quotas": pb.ChangeClientQuotas(set=[changed(QUOTA, limit=float("nan"))])},
        {"change_client_quotas": pb.ChangeClientQuotas(set=[pb.QuotaRecord(kind=QUOTA.kind, limit=1)])},
    ],
)  # fmt: skip
def test_what_cannot_be_read_is_refused_and_changes_nothing(operation: dict[str, Any]) -> None:
    log = filled()
    before = log.state.security
    assert log.apply(**operation) is ErrorCode.INVALID_REQUEST
    assert log.state.security is before


def test_below_its_level_no_command_is_applied() -> None:
    log = Log(SECURITY_LEVEL - 1)
    assert log.apply(change_acls=pb.ChangeAcls(add=[ACL])) is ErrorCode.UNSUPPORTED_VERSION
    assert not log.state.security.acls


@pytest.mark.parametrize(
    ("limit", "operation"),
    [
        ("ACLS_MAX", {"change_acls": pb.ChangeAcls(add=[changed(ACL, name="b")])}),
        (
            "SCRAM_CREDENTIALS_MAX",
            {"change_scram_credentials": pb.ChangeScramCredentials(set=[changed(SCRAM, user="b")])},
        ),
        (
            "TOKENS_MAX",
            {"change_delegation_tokens": pb.ChangeDelegationTokens(set=[changed(TOKEN, token_id="b")])},
        ),
        (
            "QUOTAS_MAX",
            {"change_client_quotas": pb.ChangeClientQuotas(set=[changed(QUOTA, kind="consumer_byte_rate")])},
        ),
    ],
)
def test_each_kind_of_record_is_bounded(
    monkeypatch: pytest.MonkeyPatch, limit: str, operation: dict[str, Any]
) -> None:
    log = filled()
    monkeypatch.setattr(security_commands, limit, 1)
    assert log.apply(**operation) is ErrorCode.POLICY_VIOLATION
    monkeypatch.setattr(security_commands, limit, 2)
    assert log.apply(**operation) is ErrorCode.NONE


def test_a_cluster_above_a_limit_may_get_smaller(monkeypatch: pytest.MonkeyPatch) -> None:
    """As after an upgrade to a release with another limit."""
    log = filled()
    more = [changed(ACL, name=name) for name in ("a", "b", "c")]
    assert log.apply(change_acls=pb.ChangeAcls(add=more)) is ErrorCode.NONE
    monkeypatch.setattr(security_commands, "ACLS_MAX", 2)
    assert log.apply(change_acls=pb.ChangeAcls(remove=[ACL])) is ErrorCode.NONE


def test_records_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(security_commands, "ACLS_MAX", 2)
    log = filled()
    more = [changed(ACL, name=name) for name in ("a", "b")]
    assert log.apply(change_acls=pb.ChangeAcls(add=more)) is ErrorCode.POLICY_VIOLATION
    assert log.apply(change_acls=pb.ChangeAcls(add=more[:1])) is ErrorCode.NONE
    assert log.apply(change_acls=pb.ChangeAcls(add=more[1:], remove=[ACL])) is ErrorCode.NONE
