"""What a request makes of ACLs, SCRAM credentials and client quotas.  Pure; sentences are Kafka's.

A request is done or refused entry by entry, as in Kafka: an entry that is refused does not hold up the
others.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import TypeVar

from ...proto import controller_pb2 as rpc
from ...proto import metadata_pb2 as pb
from ...security.acls import (
    CLUSTER_NAME,
    OPERATIONS,
    AclFilter,
    AclOperation,
    PatternType,
    PermissionType,
    ResourceType,
)
from ...security.principals import InvalidPrincipal, Principal
from ...security.quotas import ENTITY_TYPES, QuotaEntity, QuotaKind
from ...security.scram import ITERATIONS_MAX, ITERATIONS_MIN, ScramMechanism
from ...wire.errors import ErrorCode, KafkaError
from ..state.cluster_state import ClusterState
from ..state.features import require_level
from ..state.model import SECURITY_LEVEL
from ..state.security_commands import SecurityChange, acl_record, quota_key, quota_record
from .plan import Plan

NAME_BYTES_MAX = 1024
_MECHANISMS = {mechanism.code: mechanism for mechanism in ScramMechanism}
_LIMITS_OF = {
    "ip": frozenset({QuotaKind.CONNECTION}),
    "user": frozenset(QuotaKind) - {QuotaKind.CONNECTION},
}
_WHOLE_LIMITS = {
    QuotaKind.PRODUCE: (2**63 - 1, "a LONG"),
    QuotaKind.FETCH: (2**63 - 1, "a LONG"),
    QuotaKind.CONNECTION: (2**31 - 1, "an INT"),
}
FRACTION_MAX = 1e-6

_Entry = TypeVar("_Entry")


@dataclass(slots=True)
class SecurityPlan(Plan):
    """The plan of a request, and the result of each of its entries."""

    results: list[rpc.SecurityResult] = field(default_factory=list)


def plan_security(
    state: ClusterState, request: rpc.ChangeSecurityRequest, *, applied_before: bool
) -> SecurityPlan:
    """`applied_before`: the request is a copy of one that is done.  Raises KafkaError for all of it."""
    require_level(state.features, SECURITY_LEVEL)
    is_carried_out = not (applied_before or request.validate_only)
    planned = SecurityPlan(request_id=request.request_id if is_carried_out else rpc.RequestId())
    acls, scram, quotas = pb.ChangeAcls(), pb.ChangeScramCredentials(), pb.ChangeClientQuotas()
    _each(request.create_acls, planned, lambda each: acls.add.append(_checked_acl(each)))
    for wanted in request.delete_acls:
        found = _found(state, wanted)
        acls.remove.extend(found)
        planned.results.append(rpc.SecurityResult(acls=found))
    users = Counter(each.user for each in (*request.set_scram, *request.remove_scram))
    _each(request.set_scram, planned, lambda each: scram.set.append(_checked_scram(each, users)))
    _each(request.remove_scram, planned, lambda each: scram.remove.append(_present_scram(state, each, users)))
    _each(request.quotas, planned, lambda each: _alter_quotas(state, each, quotas))
    if not is_carried_out:
        return planned
    changes: list[tuple[pb.Operation, SecurityChange]] = [
        (pb.Operation(change_acls=acls), acls),
        (pb.Operation(change_scram_credentials=scram), scram),
        (pb.Operation(change_client_quotas=quotas), quotas),
    ]
    for operation, change in changes:
        if change.ByteSize():
            planned.operations.append(operation)
            planned.reason = str(operation.WhichOneof("kind")).replace("_", " ")
    return planned


def _each(entries: Iterable[_Entry], planned: SecurityPlan, plan: Callable[[_Entry], None]) -> None:
    for entry in entries:
        result = rpc.SecurityResult()
        try:
            plan(entry)
        except KafkaError as error:
            result.error, result.message = int(error.code), error.message
        planned.results.append(result)


def _checked_acl(record: pb.AclRecord) -> pb.AclRecord:
    """Raises KafkaError."""
    try:
        resource_type, operation = ResourceType(record.resource_type), AclOperation(record.operation)
        permission, pattern_type = PermissionType(record.permission), PatternType(record.pattern_type)
    except ValueError as error:
        raise _invalid(f"the ACL has an unknown number: {error}") from error
    if pattern_type not in (PatternType.LITERAL, PatternType.PREFIXED):
        raise _invalid(f"Invalid pattern type {pattern_type.name}")
    if permission not in (PermissionType.ALLOW, PermissionType.DENY):
        raise _invalid(f"Invalid permission type {permission.name}")
    if resource_type not in OPERATIONS:
        raise _invalid(f"Invalid resource type {resource_type.name}")
    if operation is not AclOperation.ALL and operation not in OPERATIONS[resource_type]:
        raise _invalid(f"Invalid operation {operation.name} for {resource_type.name}")
    if not record.name:
        raise _invalid("Resource name should not be empty")
    if resource_type is ResourceType.CLUSTER and record.name != CLUSTER_NAME:
        raise _invalid(f"The only valid name for the CLUSTER resource is {CLUSTER_NAME}")
    if not record.host:
        raise _invalid("Host should not be empty")
    if max(len(text.encode()) for text in (record.name, record.host, record.principal)) > NAME_BYTES_MAX:
        raise _invalid(f"a name of an ACL has at most {NAME_BYTES_MAX} bytes")
    try:
        Principal.parse(record.principal)
    except InvalidPrincipal as error:
        message = f"Could not parse principal from `{record.principal}` (no colon is present separating the "
        raise _invalid(f"{message}principal type from the principal name)") from error
    return record


def _found(state: ClusterState, wanted: rpc.AclFilter) -> list[pb.AclRecord]:
    """In one order."""
    try:
        acl_filter = AclFilter(
            ResourceType(wanted.resource_type),
            wanted.name if wanted.HasField("name") else None,
            PatternType(wanted.pattern_type),
            wanted.principal if wanted.HasField("principal") else None,
            wanted.host if wanted.HasField("host") else None,
            AclOperation(wanted.operation),
            PermissionType(wanted.permission),
        )
    except ValueError:
        return []
    return [acl_record(acl) for acl in sorted(state.security.acls) if acl_filter.matches(acl)]


def _mechanism_of(record: pb.ScramRecord, users: Counter[str]) -> ScramMechanism:
    """Raises KafkaError."""
    if not record.user:
        raise KafkaError(ErrorCode.UNACCEPTABLE_CREDENTIAL, "Username must not be empty")
    mechanism = _MECHANISMS.get(record.mechanism)
    if mechanism is None:
        raise KafkaError(ErrorCode.UNSUPPORTED_SASL_MECHANISM, "Unknown SCRAM mechanism")
    if users[record.user] > 1:
        raise KafkaError(
            ErrorCode.DUPLICATE_RESOURCE,
            "A user credential cannot be altered twice in the same request",
        )
    return mechanism


def _checked_scram(record: pb.ScramRecord, users: Counter[str]) -> pb.ScramRecord:
    mechanism = _mechanism_of(record, users)
    if record.iterations < ITERATIONS_MIN:
        raise KafkaError(ErrorCode.UNACCEPTABLE_CREDENTIAL, "Too few iterations")
    if record.iterations > ITERATIONS_MAX:
        raise KafkaError(ErrorCode.UNACCEPTABLE_CREDENTIAL, "Too many iterations")
    if {len(record.stored_key), len(record.server_key)} != {mechanism.digest_bytes} or not record.salt:
        raise KafkaError(ErrorCode.UNACCEPTABLE_CREDENTIAL, "the salted password has another length")
    if len(record.user.encode()) > NAME_BYTES_MAX or len(record.salt) > NAME_BYTES_MAX:
        raise KafkaError(ErrorCode.UNACCEPTABLE_CREDENTIAL, f"more than {NAME_BYTES_MAX} bytes")
    return record


def _present_scram(state: ClusterState, record: pb.ScramRecord, users: Counter[str]) -> pb.ScramRecord:
    mechanism = _mechanism_of(record, users)
    if (record.user, mechanism) not in state.security.scram:
        raise KafkaError(
            ErrorCode.RESOURCE_NOT_FOUND, "Attempt to delete a user credential that does not exist"
        )
    return pb.ScramRecord(user=record.user, mechanism=record.mechanism)


def _alter_quotas(state: ClusterState, wanted: rpc.QuotaAlteration, change: pb.ChangeClientQuotas) -> None:
    """Raises KafkaError, and has added nothing."""
    entity = _entity(wanted.entity)
    allowed = _LIMITS_OF["ip" if entity.parts[0][0] == "ip" else "user"]
    kinds: dict[str, QuotaKind] = {}
    for name in (*wanted.set, *wanted.remove):
        kind = next((each for each in allowed if each.value == name), None)
        if kind is None:
            raise _invalid(f"Invalid configuration key {name}")
        kinds[name] = kind
    for name, limit in wanted.set.items():
        _check_limit(name, kinds[name], limit)
    change.set.extend(quota_record(entity, kinds[name], limit) for name, limit in sorted(wanted.set.items()))
    change.remove.extend(
        quota_record(entity, kinds[name], 0)
        for name in sorted(wanted.remove)
        if (entity, kinds[name]) in state.security.quotas
    )


def _check_limit(name: str, kind: QuotaKind, limit: float) -> None:
    """Raises KafkaError."""
    if not limit > 0:
        raise _invalid(f"Quota {name} must be greater than 0")
    most, numbers = _WHOLE_LIMITS.get(kind, (sys.float_info.max, "a DOUBLE"))
    if limit > most:
        raise _invalid(f"Proposed value for {name} is too large for {numbers}.")
    if kind in _WHOLE_LIMITS and abs(limit - round(limit)) > FRACTION_MAX:
        raise _invalid(f"{name} cannot be a fractional value.")


def _entity(parts: Iterable[pb.QuotaEntityPart]) -> QuotaEntity:
    """Raises KafkaError."""
    parts = list(parts)
    if len({part.type for part in parts}) < len(parts):
        raise _invalid("Duplicate entity types in a client quota entity")
    if any(part.type in ENTITY_TYPES and len(part.name.encode()) > NAME_BYTES_MAX for part in parts):
        raise _invalid(f"the name of an entity has at most {NAME_BYTES_MAX} bytes")
    try:
        return quota_key(pb.QuotaRecord(entity=parts, kind=QuotaKind.PRODUCE.value))[0]
    except ValueError as error:
        raise _invalid(str(error)) from error


def _invalid(message: str) -> KafkaError:
    return KafkaError(ErrorCode.INVALID_REQUEST, message)
