"""What the commands of the metadata log make of ACLs, SCRAM credentials, delegation tokens and client quotas,
and how a snapshot holds them.  Pure and total: a command that cannot be read is refused.

Setting what is there already, and removing what is not, changes nothing, so a command may be applied again.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping
from dataclasses import replace
from typing import Final, TypeVar

from ...proto import metadata_pb2 as pb
from ...security.acls import Acl, AclOperation, PatternType, PermissionType, ResourcePattern, ResourceType
from ...security.delegation_tokens import DelegationToken
from ...security.principals import InvalidPrincipal, Principal
from ...security.quotas import DEFAULT, QuotaEntity, QuotaKind
from ...security.records import SecurityRecords
from ...security.scram import ScramCredential, ScramMechanism
from ...wire.errors import ErrorCode
from .changes import Refused

SecurityChange = pb.ChangeAcls | pb.ChangeScramCredentials | pb.ChangeDelegationTokens | pb.ChangeClientQuotas

ACLS_MAX: Final = 50_000
SCRAM_CREDENTIALS_MAX: Final = 20_000
TOKENS_MAX: Final = 20_000
QUOTAS_MAX: Final = 20_000
"""Each is in the memory of every node and in every snapshot."""

_MECHANISMS: Final = {mechanism.code: mechanism for mechanism in ScramMechanism}

_Key = TypeVar("_Key", bound=Hashable)
_Held = TypeVar("_Held")


def changed(records: SecurityRecords, op: SecurityChange) -> SecurityRecords:
    """The records after one operation.  Raises Refused, and nothing has changed."""
    try:
        match op:
            case pb.ChangeAcls():
                acls = (records.acls | {_acl(each) for each in op.add}) - {_acl(each) for each in op.remove}
                _require_room(len(acls), len(records.acls), ACLS_MAX, "ACLs")
                return replace(records, acls=acls)
            case pb.ChangeScramCredentials():
                new = dict(_credential(each) for each in op.set)
                gone = [_credential_key(each) for each in op.remove]
                scram = _edited(records.scram, new, gone, SCRAM_CREDENTIALS_MAX, "SCRAM credentials")
                return replace(records, scram=scram)
            case pb.ChangeDelegationTokens():
                tokens = {each.token_id: _token(each) for each in op.set}
                return replace(
                    records,
                    tokens=_edited(records.tokens, tokens, op.remove, TOKENS_MAX, "delegation tokens"),
                )
            case pb.ChangeClientQuotas():
                limits = {quota_key(each): each.limit for each in op.set}
                if any(not limit > 0 for limit in limits.values()):
                    raise Refused(ErrorCode.INVALID_REQUEST, "a quota is above zero")
                gone_quotas = [quota_key(each) for each in op.remove]
                quotas = _edited(records.quotas, limits, gone_quotas, QUOTAS_MAX, "client quotas")
                return replace(records, quotas=quotas)
    except (ValueError, KeyError, InvalidPrincipal) as error:
        raise Refused(ErrorCode.INVALID_REQUEST, f"a record that cannot be read: {error}") from error


def _edited(
    present: Mapping[_Key, _Held], new: Mapping[_Key, _Held], gone: Iterable[_Key], most: int, what: str
) -> Mapping[_Key, _Held]:
    future = {**present, **new}
    for key in gone:
        future.pop(key, None)
    _require_room(len(future), len(present), most, what)
    return future


def _require_room(future: int, present: int, most: int, what: str) -> None:
    if future > most and future > present:
        raise Refused(ErrorCode.POLICY_VIOLATION, f"a cluster has at most {most} {what}")


def _acl(record: pb.AclRecord) -> Acl:
    """Raises ValueError."""
    pattern_type = PatternType(record.pattern_type)
    if pattern_type not in (PatternType.LITERAL, PatternType.PREFIXED) or not record.name:
        raise ValueError(f"an ACL names a resource, {pattern_type.name.lower()} is a filter's")
    pattern = ResourcePattern(ResourceType(record.resource_type), record.name, pattern_type)
    return Acl(
        pattern,
        str(Principal.parse(record.principal)),
        record.host,
        AclOperation(record.operation),
        PermissionType(record.permission),
    )


def acl_record(acl: Acl) -> pb.AclRecord:
    """As the log holds it."""
    return pb.AclRecord(
        resource_type=acl.pattern.resource_type,
        pattern_type=acl.pattern.pattern_type,
        name=acl.pattern.name,
        principal=acl.principal,
        host=acl.host,
        operation=acl.operation,
        permission=acl.permission,
    )


def _credential_key(record: pb.ScramRecord) -> tuple[str, ScramMechanism]:
    """Raises KeyError."""
    return record.user, _MECHANISMS[record.mechanism]


def _credential(record: pb.ScramRecord) -> tuple[tuple[str, ScramMechanism], ScramCredential]:
    """Raises KeyError, ValueError."""
    user, mechanism = _credential_key(record)
    if not user or not record.salt or not record.iterations > 0:
        raise ValueError("a SCRAM credential has a user, a salt and iterations")
    if {len(record.stored_key), len(record.server_key)} != {mechanism.digest_bytes}:
        raise ValueError(f"the keys of {mechanism.mechanism_name} have {mechanism.digest_bytes} bytes")
    credential = ScramCredential(record.salt, record.stored_key, record.server_key, record.iterations)
    return (user, mechanism), credential


def scram_record(user: str, mechanism: ScramMechanism, credential: ScramCredential) -> pb.ScramRecord:
    """As the log holds it."""
    return pb.ScramRecord(
        user=user,
        mechanism=mechanism.code,
        salt=credential.salt,
        stored_key=credential.stored_key,
        server_key=credential.server_key,
        iterations=credential.iterations,
    )


def _token(record: pb.TokenRecord) -> DelegationToken:
    """Raises ValueError."""
    if not record.token_id:
        raise ValueError("a token has an id")
    return DelegationToken(
        record.token_id,
        Principal.parse(record.owner),
        Principal.parse(record.requester),
        tuple(Principal.parse(each) for each in record.renewers),
        record.issued_at_ms,
        record.expires_at_ms,
        record.ends_at_ms,
    )


def token_record(token: DelegationToken) -> pb.TokenRecord:
    """As the log holds it."""
    return pb.TokenRecord(
        token_id=token.token_id,
        owner=str(token.owner),
        requester=str(token.requester),
        renewers=[str(each) for each in token.renewers],
        issued_at_ms=token.issued_at_ms,
        expires_at_ms=token.expires_at_ms,
        ends_at_ms=token.ends_at_ms,
    )


def quota_key(record: pb.QuotaRecord) -> tuple[QuotaEntity, QuotaKind]:
    """Raises ValueError."""
    parts = {part.type: DEFAULT if part.is_default else part.name for part in record.entity}
    return QuotaEntity.of(parts), QuotaKind(record.kind)


def quota_record(entity: QuotaEntity, kind: QuotaKind, limit: float) -> pb.QuotaRecord:
    """As the log holds it."""
    parts = [
        pb.QuotaEntityPart(type=each, name=name or "", is_default=name is DEFAULT)
        for each, name in entity.parts
    ]
    return pb.QuotaRecord(entity=parts, kind=kind.value, limit=limit)


def encode(records: SecurityRecords) -> pb.SecurityRecord | None:
    """One encoding for equal records; None when there are none."""
    if records == SecurityRecords():
        return None
    return pb.SecurityRecord(
        acls=[acl_record(each) for each in sorted(records.acls)],
        scram=[
            scram_record(*key, records.scram[key])
            for key in sorted(records.scram, key=lambda key: (key[0], key[1].code))
        ],
        tokens=[token_record(records.tokens[token_id]) for token_id in sorted(records.tokens)],
        quotas=sorted(
            (quota_record(*key, limit) for key, limit in records.quotas.items()),
            key=lambda record: record.SerializeToString(deterministic=True),
        ),
    )


def decode(record: pb.SecurityRecord) -> SecurityRecords:
    """Raises ValueError."""
    try:
        return SecurityRecords(
            acls=frozenset(_acl(each) for each in record.acls),
            scram=dict(_credential(each) for each in record.scram),
            tokens={each.token_id: _token(each) for each in record.tokens},
            quotas={quota_key(each): each.limit for each in record.quotas},
        )
    except KeyError as error:
        raise ValueError(f"an unknown SCRAM mechanism: {error}") from error
