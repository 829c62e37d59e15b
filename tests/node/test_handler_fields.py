"""Fields that only some versions of a request have are asked for by name, with a default: a misspelt name
would always be the default, without any error."""

from __future__ import annotations

import ast
from dataclasses import fields, is_dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast, get_args

import pytest
import tidegate.node.handlers
from tidegate.coordinator.group.events import OffsetsReply
from tidegate.node.handlers.groups import offset_commit
from tidegate.node.serving.broker import Broker
from tidegate.node.serving.requests import RequestContext
from tidegate.tests.permissions import ALL_ALLOWED
from tidegate.wire import codec
from tidegate.wire.api import TABLE, ApiKey
from tidegate.wire.schema import request_class

HANDLERS = Path(tidegate.node.handlers.__file__).parent
BY_NAME = {path.stem.upper(): path for path in HANDLERS.rglob("*.py")}
MODULES_OF = {key: BY_NAME[key.name] for key in ApiKey if key.name in BY_NAME}


def field_names(kind: Any) -> set[str]:
    """Of an entity and of all that it is made of."""
    found: set[str] = set()
    if is_dataclass(kind):
        for field in fields(kind):
            found |= {field.name} | field_names(field.type)
    for part in get_args(kind):
        found |= field_names(part)
    return found


def asked_for(source: str) -> set[str]:
    """The names in `getattr(..., "name", default)`."""
    calls = [node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Call)]
    return {
        call.args[1].value
        for call in calls
        if isinstance(call.func, ast.Name) and call.func.id == "getattr"
        if isinstance(call.args[1], ast.Constant) and isinstance(call.args[1].value, str)
    }


@pytest.mark.parametrize("key", list(MODULES_OF), ids=lambda key: key.name)
def test_every_field_that_is_asked_for_by_name_is_in_some_version(key: ApiKey) -> None:
    spec = TABLE[key]
    known = set[str]().union(
        *(field_names(request_class(key, version)) for version in range(spec.low, spec.high + 1))
    )
    assert asked_for(MODULES_OF[key].read_text()) <= known


def test_a_misspelt_name_would_be_found() -> None:
    assert asked_for('getattr(request, "retention_time_ms", -1)') == {"retention_time_ms"}
    assert len(MODULES_OF) == len(ApiKey)


class Groups:
    """Keeps the events that it is asked."""

    def __init__(self) -> None:
        self.asked: list[Any] = []

    async def ask(self, group_id: str, event: Any) -> Any:
        self.asked.append(event)
        return OffsetsReply({})


@pytest.mark.parametrize(("version", "kept_ms"), [(2, 5_000), (4, 5_000), (5, -1), (9, -1)])
async def test_offsets_are_kept_for_as_long_as_an_older_client_says(version: int, kept_ms: int) -> None:
    """OffsetCommit 2 to 4 bring a retention of their own; later ones leave it to the cluster (KIP-211)."""
    groups = Groups()
    topic = SimpleNamespace(partitions={0: None})
    state = SimpleNamespace(topics={"flights": topic})
    broker = SimpleNamespace(groups=groups, permissions=ALL_ALLOWED, state=state)
    part = {
        "partition_index": 0,
        "committed_offset": 1,
        "committed_leader_epoch": -1,
        "committed_metadata": None,
    }
    fields = {
        "group_id": "readers", "generation_id_or_member_epoch": 3, "member_id": "m",
        "group_instance_id": None,
        "retention_time": 5_000, "topics": [{"name": "flights", "partitions": [part]}],
    }  # fmt: skip
    body = codec.request(ApiKey.OFFSET_COMMIT, version, fields)
    request = codec.decode_request_body(ApiKey.OFFSET_COMMIT, version, body, 0)
    context = RequestContext(ApiKey.OFFSET_COMMIT, version, 1, "client", "127.0.0.1")
    await offset_commit.handle(cast(Broker, broker), context, request)
    assert (groups.asked[0].retention_ms, groups.asked[0].generation) == (kept_ms, 3)
