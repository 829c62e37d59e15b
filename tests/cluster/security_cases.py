"""Requests of security to a node without an authorizer, as cases beside those of `protocol_cases`: on its
plain listener a client is anonymous."""

from __future__ import annotations

from typing import Any

from tidegate.wire.api import ApiKey
from tidegate.wire.errors import ErrorCode

from .protocol_cases import ANY, CASES, OK, World, case, fresh

__all__ = ["CASES"]

ANY_ACL = {
    "resource_type_filter": 1, "resource_name_filter": None, "pattern_type_filter": 1,
    "principal_filter": None, "host_filter": None, "operation": 1, "permission_type": 1,
}  # fmt: skip
DISABLED = {"error_code": int(ErrorCode.SECURITY_DISABLED), "error_message": ANY}
NOT_ALLOWED = {"throttle_time": 0, "error_code": int(ErrorCode.DELEGATION_TOKEN_REQUEST_NOT_ALLOWED)}
STATE = {"error_code": int(ErrorCode.ILLEGAL_SASL_STATE)}


@case(ApiKey.SASL_HANDSHAKE)
async def _sasl_handshake(_world: World, _version: int) -> Any:
    return {"mechanism": "PLAIN"}, STATE | {"mechanisms": ()}


@case(ApiKey.SASL_AUTHENTICATE)
async def _sasl_authenticate(_world: World, _version: int) -> Any:
    return {"auth_bytes": b"x"}, STATE | {"error_message": ANY, "auth_bytes": b"", "session_lifetime": 0}


@case(ApiKey.DESCRIBE_ACLS)
async def _describe_acls(_world: World, _version: int) -> Any:
    return ANY_ACL, {"throttle_time": 0, **DISABLED, "resources": ()}


@case(ApiKey.CREATE_ACLS)
async def _create_acls(_world: World, _version: int) -> Any:
    wanted = {
        "resource_type": 2, "resource_name": "t", "resource_pattern_type": 3, "principal": "User:a",
        "host": "*", "operation": 3, "permission_type": 3,
    }  # fmt: skip
    return {"creations": [wanted]}, {"throttle_time": 0, "results": [DISABLED]}


@case(ApiKey.DELETE_ACLS)
async def _delete_acls(_world: World, _version: int) -> Any:
    result = {**DISABLED, "matching_acls": ()}
    return {"filters": [ANY_ACL]}, {"throttle_time": 0, "filter_results": [result]}


@case(ApiKey.ALTER_CLIENT_QUOTAS)
async def _alter_client_quotas(_world: World, _version: int) -> Any:
    entity = [{"entity_type": "user", "entity_name": fresh("user")}]
    ops = [{"key": "producer_byte_rate", "value": 1e6, "remove": False}]
    entry = {"error_code": 0, "error_message": None, "entity": entity}
    wanted = {"entries": [{"entity": entity, "ops": ops}], "validate_only": True}
    return wanted, {"throttle_time": 0, "entries": [entry]}


@case(ApiKey.DESCRIBE_CLIENT_QUOTAS)
async def _describe_client_quotas(world: World, _version: int) -> Any:
    name = fresh("user")
    entity = [{"entity_type": "user", "entity_name": name}]
    ops = [{"key": "producer_byte_rate", "value": 1e6, "remove": False}]
    await world.ask(
        ApiKey.ALTER_CLIENT_QUOTAS, 1, entries=[{"entity": entity, "ops": ops}], validate_only=False
    )  # fmt: skip
    component = {"entity_type": "user", "match_type": 0, "match": name}
    entry = {"entity": entity, "values": [{"key": "producer_byte_rate", "value": 1e6}]}
    answer = OK | {"error_message": None, "entries": [entry]}
    return {"components": [component], "strict": False}, answer


@case(ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS)
async def _describe_user_scram_credentials(_world: World, _version: int) -> Any:
    name = fresh("user")
    result = {
        "user": name, "error_code": int(ErrorCode.RESOURCE_NOT_FOUND), "error_message": ANY,
        "credential_infos": (),
    }  # fmt: skip
    return {"users": [{"name": name}]}, OK | {"error_message": None, "results": [result]}


@case(ApiKey.ALTER_USER_SCRAM_CREDENTIALS)
async def _alter_user_scram_credentials(_world: World, _version: int) -> Any:
    name = fresh("user")
    wanted = {
        "name": name, "mechanism": 1, "iterations": 4096, "salt": b"salt", "salted_password": bytes(32)
    }  # fmt: skip
    result = {"user": name, "error_code": 0, "error_message": None}
    return {"deletions": [], "upsertions": [wanted]}, {"throttle_time": 0, "results": [result]}


@case(ApiKey.DESCRIBE_DELEGATION_TOKEN)
async def _describe_delegation_token(_world: World, _version: int) -> Any:
    return {"owners": None}, NOT_ALLOWED | {"tokens": ()}
