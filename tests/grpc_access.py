"""Who may call the gRPC services of a test's node, and the keys of its bearer tokens."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from jwt import PyJWK
from tidegate.node.serving.authentication import ListenerIdentity
from tidegate.node.serving.grpc_callers import GrpcAccess, OnRefused
from tidegate.node.serving.key_set import OF_A_FILE, BearerKeys, KeySet, KeySetFile
from tidegate.node.serving.permissions import Permissions
from tidegate.node.settings.definitions import SETTINGS
from tidegate.node.settings.security_settings import listener_security
from tidegate.runtime.clock import Clock, ManualClock, SystemClock
from tidegate.runtime.connections.listeners import Listener, SecurityProtocol
from tidegate.runtime.disk import RealDisk
from tidegate.security.bearer_tokens import TokenRules
from tidegate.security.records import SecurityRecords
from tidegate.security.session_tokens import SessionTokens


def bearer_keys(rules: TokenRules, keys: Mapping[str, PyJWK]) -> BearerKeys:
    """Keys that stay."""
    key_set = KeySet(KeySetFile(Path("unread"), RealDisk()), OF_A_FILE, ManualClock(), lambda _: None)
    key_set.keys = keys
    return BearerKeys(rules, key_set)


def open_access() -> GrpcAccess:
    """Everyone, everything."""
    return access("PLAINTEXT", SecurityRecords, authorizes=False)


def access(
    protocol: str,
    records: Callable[[], SecurityRecords],
    *,
    authorizes: bool = True,
    bearer: BearerKeys | None = None,
    token_secret: bytes = b"",
    calls_per_principal_max: int = 1_000,
    clock: Clock | None = None,
    tokens: SessionTokens | None = None,
    on_refused: OnRefused = lambda *_: None,
    **settings: Any,
) -> GrpcAccess:
    """`settings`: names with `_` for `.`."""
    values = {name: setting.default for name, setting in SETTINGS.items()}
    values |= {name.replace("_", "."): value for name, value in settings.items()}
    listener = Listener("GRPC", "127.0.0.1", 0, SecurityProtocol[protocol])
    identity = ListenerIdentity(
        listener_security(listener, values),
        clock=clock or SystemClock(), records=records, bearer=bearer, token_secret=token_secret,
    )  # fmt: skip
    return GrpcAccess(
        identity,
        Permissions(records, is_enabled=authorizes),
        tokens=tokens,
        on_refused=on_refused,
        calls_per_principal_max=calls_per_principal_max,
    )
