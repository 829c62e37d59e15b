"""Every handler answers with the error of the part that it asks.  A KafkaError that leaves a handler closes
the connection (`node/serving/requests.py`), and its client cannot see why."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final, cast

import pytest
from tidegate.node.cluster.topic_creation import TopicCreation
from tidegate.node.handlers import HANDLERS
from tidegate.node.serving import requests
from tidegate.node.serving.audit import Audit
from tidegate.node.serving.broker import Broker
from tidegate.node.serving.described_topics import DescribedTopics
from tidegate.node.serving.permissions import Permissions
from tidegate.node.serving.rejected_sequences import RejectedSequences
from tidegate.node.serving.requests import Deferred, Encoded, RequestContext, worst_error
from tidegate.node.serving.throttling import Throttling
from tidegate.proto import metadata_pb2 as pb
from tidegate.runtime.clock import ManualClock
from tidegate.runtime.connections.listeners import SecurityProtocol
from tidegate.security.principals import Principal
from tidegate.security.records import SecurityRecords
from tidegate.wire import codec
from tidegate.wire.api import TABLE, ApiKey, advertised
from tidegate.wire.errors import ErrorCode, KafkaError
from tidegate.wire.fetch import FetchPartition, FetchRequest, FetchResponse, encode_fetch_request
from tidegate.wire.produce import encode_produce_request
from tidegate.wire.records import NewRecord, encode_batch
from tidegate.wire.schema import FieldShape, Shape, request_class, shape_of

from .test_configuration import loaded
from .test_described_topics import Applier
from .test_handler_fields import MODULES_OF

ASK_NOTHING_THAT_FAILS: Final = {
    ApiKey.API_VERSIONS,
    ApiKey.DESCRIBE_ACLS,
    ApiKey.DESCRIBE_CLIENT_QUOTAS,
    ApiKey.DESCRIBE_CLUSTER,
    ApiKey.DESCRIBE_CONFIGS,
    ApiKey.DESCRIBE_DELEGATION_TOKEN,
    ApiKey.DESCRIBE_LOG_DIRS,
    ApiKey.DESCRIBE_TOPIC_PARTITIONS,
    ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS,
    ApiKey.LIST_CONFIG_RESOURCES,
    ApiKey.LIST_PARTITION_REASSIGNMENTS,
    ApiKey.SASL_AUTHENTICATE,
    ApiKey.SASL_HANDSHAKE,
}
"""They answer with what this node knows."""
TRANSLATED: Final = {
    ApiKey.ADD_OFFSETS_TO_TXN: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ApiKey.FIND_COORDINATOR: ErrorCode.COORDINATOR_NOT_AVAILABLE,
}
"""The state topic cannot be created: the client can only ask again."""
TOPIC: Final = "t0"
LISTENER: Final = SimpleNamespace(security=SimpleNamespace(protocol=SecurityProtocol.SASL_SSL, mechanisms=()))
AUTHENTICATED: Final[Any] = SimpleNamespace(
    principal=Principal("User", "root"), nodes=frozenset(), listener=LISTENER,
    handshake=lambda *_: None, authenticate=lambda *_: None,
)  # fmt: skip
VALUES: Final[dict[str, object]] = {
    "path": "/data",
    "resource_type": 2,
    "upgrade_type": 1,
}
"""By the field's name, where the value that its type has is refused before anything is asked."""
ABSENT: Final[dict[ApiKey, set[str]]] = {ApiKey.DELETE_TOPICS: {"topic_id"}, ApiKey.METADATA: {"topic_id"}}


def value_of(key: ApiKey, field: FieldShape) -> object:
    """The smallest value in which every array has one element."""
    if field.name in ABSENT.get(key, ()):
        return None
    if field.name in VALUES:
        return VALUES[field.name]
    if field.entity is not None:
        one: object = fields_of(key, field.entity)
    elif field.kind == "string":
        unknown = key is ApiKey.METADATA  # a topic that there is not: it is created
        one = "__cluster_metadata" if key is ApiKey.DESCRIBE_QUORUM else "unknown" if unknown else TOPIC
    elif field.kind in ("bytes", "records"):
        one = b""
    elif field.kind == "bool":
        one = key is ApiKey.METADATA
    elif field.kind == "uuid":
        one = Applier.topic_id(0)
    else:
        one = 0
    return [one] if field.is_array else one


def fields_of(key: ApiKey, shape: Shape) -> dict[str, object]:
    return {field.name: value_of(key, field) for field in shape.plain}


def body_of(key: ApiKey, version: int) -> bytes:
    topic = Applier.topic_id(0)
    if key is ApiKey.FETCH:
        parts = [FetchPartition(0, 0, 1000)]
        by_name, by_id = FetchRequest(topics=[(TOPIC, parts)]), FetchRequest(topics_by_id=[(topic, parts)])
        return encode_fetch_request(version, by_name if version <= 12 else by_id)
    if key is ApiKey.PRODUCE:
        records = encode_batch([NewRecord(None, b"v", (), 1)])
        named = TOPIC if version <= 12 else topic
        return b"".join(encode_produce_request(version, [(named, [(0, records)])], acks=-1, timeout_ms=1000))
    return codec.request(key, version, fields_of(key, shape_of(request_class(key, version))))


class Refusing:
    """A part of the broker: every call raises."""

    def __init__(self, code: ErrorCode, **known: object) -> None:
        self._code = code
        for name, value in known.items():
            setattr(self, name, value)

    def __getattr__(self, name: str) -> Callable[..., Any]:
        def refuse(*_: object, **__: object) -> Any:
            raise KafkaError(self._code, f"{name} refuses")

        return refuse

    def __iter__(self) -> Iterator[object]:
        return iter(())


def broker_of(code: ErrorCode) -> Broker:
    """A broker that knows its metadata, and of which every part refuses what it is asked."""
    applier = Applier()
    for node_id in (1, 2, 3):
        applier.broker(node_id)
    applier.topic(TOPIC, 0, 1)
    applier(set_feature_level=pb.SetFeatureLevel(name="group.version", expected_level=0, level=1))
    configuration = loaded("auto.create.topics.enable=true")
    cluster: Any = SimpleNamespace(
        node_id=1,
        state=applier.state,
        metadata_index=1,
        controller_id=1,
        topic_name=lambda topic_id: applier.state.topic_by_id(topic_id).name,  # type: ignore[union-attr]
    )
    controller = Refusing(code)

    async def logs_made(_timeout_s: float) -> None: ...

    async def ask(question: Callable[[object], object]) -> object:
        return question({})

    async def fetch(*_: object, **__: object) -> FetchResponse:
        return FetchResponse(code)  # the errors of a fetch are values

    folder = SimpleNamespace(path=Path("/data"), is_offline=False)
    return cast(
        Broker,
        SimpleNamespace(
            node_id=1,
            configuration=configuration,
            clock=ManualClock(),
            cluster=cluster,
            state=applier.state,
            controller=controller,
            topics=TopicCreation(configuration, cluster, cast(Any, controller), logs_made),
            replicas=Refusing(code, fetch=fetch, hosted=()),
            directory=SimpleNamespace(folders=[folder], futures={}, offline_folders={Path("/data")}),
            moves=Refusing(code),
            reserves=SimpleNamespace(given_up=False),
            transactions=Refusing(code, refusals=lambda wanted: {}),
            groups=Refusing(code),
            enlistment=Refusing(code),
            lifecycle=SimpleNamespace(holds_session=True),
            producer_ids=Refusing(code),
            permissions=Permissions(
                SecurityRecords, is_enabled=True, super_users=frozenset({AUTHENTICATED.principal})
            ),
            audit=Audit(ManualClock()),
            throttling=Throttling(dict, ManualClock(), may_act_as_node=lambda _: False),
            rejected_sequences=RejectedSequences(),
            described_topics=DescribedTopics(),
            client_metrics=Refusing(code, subscriptions=lambda *_: SimpleNamespace(error=code)),
            batch_threads=SimpleNamespace(ask=ask),
            metrics=SimpleNamespace(bytes_in=lambda count: None, bytes_out=lambda count: None),
            announced_versions=advertised(TABLE),
        ),
    )


async def outcome_of(broker: Broker, key: ApiKey, version: int) -> ErrorCode:
    """The most severe error of the answer, after it was encoded.  Raises what the handler raises."""
    context = RequestContext(key, version, 1, "client", "127.0.0.1", authentication=AUTHENTICATED)
    body = memoryview(body_of(key, version))
    answer: Any
    if key in HANDLERS.staged:
        staged = HANDLERS.staged[key](broker, context, body)
        if staged.verify is not None:
            await staged.verify()
        answer = await staged.execute()
    else:
        request = codec.decode_request_body(key, version, bytes(body), 0)
        answer = await HANDLERS.decoded[key](broker, context, request)
    if isinstance(answer, Deferred):
        answer = await cast(Awaitable[Any], answer.answer)
    if isinstance(answer, Encoded):
        return answer.outcome
    assert codec.response(key, version, answer)
    return worst_error(answer)


@pytest.mark.parametrize("code", [ErrorCode.NOT_CONTROLLER, ErrorCode.REQUEST_TIMED_OUT])
@pytest.mark.parametrize("key", list(TABLE), ids=lambda key: key.name)
async def test_a_handler_answers_with_the_error_that_it_meets(key: ApiKey, code: ErrorCode) -> None:
    wanted = TRANSLATED.get(key, code)
    for version in range(TABLE[key].low, TABLE[key].high + 1):
        outcome = await outcome_of(broker_of(code), key, version)
        assert key in ASK_NOTHING_THAT_FAILS or outcome is wanted, f"version {version}"


def test_every_handler_is_tried() -> None:
    assert set(TABLE) == HANDLERS.keys


def test_the_table_of_waiting_requests_names_those_that_are_deferred() -> None:
    text = requests.__doc__ or ""
    table = "".join(line.lower() for line in text.splitlines() if "`Deferred` |" in line)
    named = {key for key in TABLE if re.search(rf"\b{key.name.replace('_', '').lower()}\b", table)}
    waiting = {key for key in MODULES_OF if "Deferred(" in MODULES_OF[key].read_text()}
    assert named == waiting
