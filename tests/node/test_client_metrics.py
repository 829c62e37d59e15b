"""Metrics that clients push: the subscription of each client, refusals in Kafka's words, and the bounds."""

from __future__ import annotations

import gzip
from types import SimpleNamespace
from typing import Any, cast
from uuid import UUID

import pytest
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, KeyValue
from opentelemetry.proto.metrics.v1.metrics_pb2 import (
    AggregationTemporality,
    Gauge,
    Histogram,
    HistogramDataPoint,
    Metric,
    MetricsData,
    NumberDataPoint,
    ResourceMetrics,
    ScopeMetrics,
    Sum,
)
from prometheus_client import CollectorRegistry, generate_latest
from tidegate.controller.state.resource_settings import ResourceType
from tidegate.node.observation import client_metrics
from tidegate.node.observation.client_metrics import (
    INTERVAL_MS_DEFAULT,
    NO_INSTANCE,
    TELEMETRY_BYTES_MAX,
    ClientIdentity,
    ClientMetrics,
    ClientMetricsCollector,
    Point,
    ResourceConfigs,
    decoded_points,
)
from tidegate.node.serving.broker import Broker
from tidegate.node.settings.configuration import load
from tidegate.wire.api import ApiKey
from tidegate.wire.compression import Compression, compress
from tidegate.wire.errors import ErrorCode, KafkaError

ME = UUID(int=1)
CLIENT = ClientIdentity("app-1", "apache-kafka-java", "4.1.1", "10.0.0.1", 4711)
METRICS = int(ResourceType.CLIENT_METRICS)
DELTA = AggregationTemporality.AGGREGATION_TEMPORALITY_DELTA
CUMULATIVE = AggregationTemporality.AGGREGATION_TEMPORALITY_CUMULATIVE


def configs(**named: dict[str, str]) -> ResourceConfigs:
    return {(METRICS, name): config for name, config in named.items()}


ALL = configs(all={"metrics": "*", "interval.ms": "1000"})


@pytest.mark.parametrize("always", [False, True])
def test_client_metrics_are_announced_while_there_is_a_subscription(always: bool) -> None:
    """Without one librdkafka would write a line for every client."""
    node = {
        "node.id": "1",
        "cluster.id": "abc",
        "controller.quorum.voters": "1@127.0.0.1:9094:9093",
        "log.dirs": "data",
    }
    options = [
        f"{key}={value}"
        for key, value in (node | {"client.metrics.always.announced": str(always).lower()}).items()
    ]
    every_key, of_broker = frozenset(ApiKey), cast(Any, Broker.announced_versions).fget
    client_metrics_keys = {ApiKey.GET_TELEMETRY_SUBSCRIPTIONS, ApiKey.PUSH_TELEMETRY}
    for found, announced in (
        ({}, always), ({(int(ResourceType.GROUP), "g"): {}}, always), (ALL, True), ({}, always),
    ):  # fmt: skip
        broker = SimpleNamespace(
            configuration=load(None, environment={}, overrides=options), client_metrics=ClientMetrics(),
            handled_keys=every_key,
            state=SimpleNamespace(resource_configs=dict(found)),
        )  # fmt: skip
        announced_keys = {key for key, _, _ in of_broker(broker)}
        assert (client_metrics_keys <= announced_keys) is announced
        assert every_key - client_metrics_keys <= announced_keys


def push(
    clients: ClientMetrics, now_ms: int, wanted: ResourceConfigs = ALL, instance_id: UUID = ME, **other: int
) -> ErrorCode:
    """One push after a subscription was asked for; the error, if any."""
    known = clients._instance(instance_id, CLIENT, wanted, now_ms).subscription.subscription_id
    fields = {"subscription_id": known, "terminating": False, "compression": 0, "size": 10} | other
    try:
        clients.check_push(instance_id, CLIENT, wanted, now_ms, **fields)  # type: ignore[arg-type]
    except KafkaError as error:
        return error.code
    return ErrorCode.NONE


def otlp(*metrics: Metric) -> bytes:
    return MetricsData(
        resource_metrics=[ResourceMetrics(scope_metrics=[ScopeMetrics(metrics=metrics)])]
    ).SerializeToString()


def number(value: float, **attributes: str) -> NumberDataPoint:
    pairs = [KeyValue(key=key, value=AnyValue(string_value=text)) for key, text in attributes.items()]
    return NumberDataPoint(as_double=value, attributes=pairs)


def test_a_client_without_a_subscription_asks_again_in_five_minutes() -> None:
    answer = ClientMetrics().subscriptions(ME, CLIENT, {}, 1_000_000)
    assert (answer.error, answer.subscription.metrics, answer.subscription.interval_ms) == (
        0,
        (),
        INTERVAL_MS_DEFAULT,
    )


@pytest.mark.parametrize(
    ("match", "fits"),
    [
        ("", True), ("client_id=app.*", True), ("client_id=app", False),
        ("client_software_name=apache-kafka-java", True),
        ("client_software_version=4.*,client_id=app-1", True),
        ("client_software_version=3.*,client_id=app-1", False),
        ("client_source_address=10[.]0[.].*", True), ("client_source_port=4711", True),
        ("client_source_port=1", False),
        ("client_instance_id=AAAAAAAAAAAAAAAAAAAAAQ", True),
        ("client_instance_id=AAAAAAAAAAAAAAAAAAAAAg", False),
    ],
)  # fmt: skip
def test_a_subscription_chooses_clients(match: str, fits: bool) -> None:
    wanted = configs(one={"metrics": "a,b", "match": match, "interval.ms": "2000"})
    subscription = ClientMetrics().subscriptions(ME, CLIENT, wanted, 1_000_000).subscription
    assert (subscription.metrics, subscription.interval_ms) == (
        (("a", "b"), 2000) if fits else ((), INTERVAL_MS_DEFAULT)
    )


def test_subscriptions_add_up_at_the_shortest_interval_and_a_star_is_all() -> None:
    both = configs(one={"metrics": "a", "interval.ms": "2000"}, two={"metrics": "b,a", "interval.ms": "1000"})
    first = ClientMetrics().subscriptions(ME, CLIENT, both, 1_000_000).subscription
    assert (first.metrics, first.interval_ms) == (("a", "b"), 1000)
    star = ClientMetrics().subscriptions(ME, CLIENT, {**both, **ALL}, 1_000_000).subscription
    assert star.metrics == ("",)
    assert star.subscription_id != first.subscription_id


def test_a_client_that_asks_or_pushes_too_early_is_throttled() -> None:
    clients = ClientMetrics()
    assert clients.subscriptions(ME, CLIENT, ALL, 10_000).error == ErrorCode.NONE
    assert clients.subscriptions(ME, CLIENT, ALL, 10_500).error == ErrorCode.THROTTLING_QUOTA_EXCEEDED
    assert push(clients, 10_501) == ErrorCode.NONE, "the first push may follow at once"
    assert push(clients, 10_900) == ErrorCode.THROTTLING_QUOTA_EXCEEDED
    assert push(clients, 11_501) == ErrorCode.NONE
    assert push(clients, 11_600, terminating=True) == ErrorCode.NONE, "the last one is never too early"
    assert push(clients, 99_999) == ErrorCode.INVALID_REQUEST, "nothing may follow it"


def test_a_changed_subscription_is_announced_and_served_at_once() -> None:
    clients = ClientMetrics()
    old = clients.subscriptions(ME, CLIENT, ALL, 10_000).subscription.subscription_id
    other = configs(all={"metrics": "x", "interval.ms": "1000"})
    assert push(clients, 10_100, other, subscription_id=old) == ErrorCode.UNKNOWN_SUBSCRIPTION_ID
    answer = clients.subscriptions(ME, CLIENT, other, 10_200)
    assert answer.error == ErrorCode.NONE
    assert answer.subscription.metrics == ("x",)


def test_what_cannot_be_taken_is_refused_as_kafka_does() -> None:
    clients = ClientMetrics()
    clients.subscriptions(ME, CLIENT, ALL, 10_000)
    assert push(clients, 10_001, compression=9) == ErrorCode.UNSUPPORTED_COMPRESSION_TYPE
    assert push(clients, 20_000, size=TELEMETRY_BYTES_MAX + 1) == ErrorCode.TELEMETRY_TOO_LARGE
    assert push(clients, 30_000, instance_id=NO_INSTANCE) == ErrorCode.INVALID_REQUEST
    assert clients.errors == 2


@pytest.mark.parametrize("codec", list(Compression))
def test_a_push_is_read_in_every_compression(codec: Compression) -> None:
    data = otlp(
        Metric(
            name="org.apache.kafka.producer.rate", gauge=Gauge(data_points=[number(2.5, **{"node.id": "1"})])
        )
    )
    (point,) = decoded_points(codec, compress(codec, data))
    assert point == Point("tidegate_client_org_apache_kafka_producer_rate", (("node_id", "1"),), 2.5)


def test_what_is_no_metrics_or_unfolds_to_too_much_is_refused() -> None:
    for codec, data in (
        (0, b"\xff\xff"),
        (1, b"no gzip"),
        (1, gzip.compress(bytes(client_metrics.UNFOLDED_BYTES_MAX + 1))),
    ):
        with pytest.raises(KafkaError) as refused:
            decoded_points(codec, data)
        assert refused.value.code == ErrorCode.INVALID_RECORD


def test_totals_replace_deltas_add_up_and_histograms_have_count_and_sum() -> None:
    clients = ClientMetrics()
    clients.subscriptions(ME, CLIENT, ALL, 10_000)
    histogram = Histogram(
        data_points=[HistogramDataPoint(count=3, sum=1.5)], aggregation_temporality=CUMULATIVE
    )
    for now_ms in (10_000, 11_000):
        assert push(clients, now_ms) == ErrorCode.NONE
        data = otlp(
            Metric(
                name="a.total",
                sum=Sum(data_points=[number(5)], is_monotonic=True, aggregation_temporality=CUMULATIVE),
            ),
            Metric(
                name="b",
                sum=Sum(data_points=[number(5, topic="t")], is_monotonic=True, aggregation_temporality=DELTA),
            ),
            Metric(name="c", histogram=histogram),
        )
        clients.pushed(ME, decoded_points(0, data))
    registry = CollectorRegistry()
    registry.register(ClientMetricsCollector(clients))
    page = generate_latest(registry).decode()
    instance_id = 'client_id="app-1",client_instance_id="AAAAAAAAAAAAAAAAAAAAAQ"'
    assert f"tidegate_client_a_total{{{instance_id}}} 5.0" in page
    assert f'tidegate_client_b_total{{{instance_id},topic="t"}} 10.0' in page
    assert f"tidegate_client_c_observations_total{{{instance_id}}} 3.0" in page
    assert "tidegate_telemetry_pushes_total 2.0" in page


def test_no_client_and_not_all_of_them_together_have_more_than_their_share(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(client_metrics, "SERIES_MAX", 5)
    monkeypatch.setattr(client_metrics, "SERIES_OF_A_CLIENT_MAX", 3)
    clients = ClientMetrics()
    for instance_id in (UUID(int=1), UUID(int=2)):
        assert push(clients, 10_000, instance_id=instance_id) == ErrorCode.NONE
        clients.pushed(instance_id, [Point(f"m{n}", (), 1.0) for n in range(4)])
    assert (clients._series, clients.dropped) == (5, 3)
    assert push(clients, 20_000, instance_id=UUID(int=1), terminating=True) == ErrorCode.NONE
    clients.pushed(UUID(int=1), [Point("last", (), 1.0)])
    assert clients._series == 2, "a client that ends takes its series along"


def test_clients_are_forgotten_when_they_are_silent_or_too_many(monkeypatch: pytest.MonkeyPatch) -> None:
    clients = ClientMetrics()
    push(clients, 10_000)
    clients.pushed(ME, [Point("m", (), 1.0)])
    clients.expire(70_000)
    assert clients.instances == 1
    clients.expire(70_001)
    assert (clients.instances, clients._series) == (0, 0)
    monkeypatch.setattr(client_metrics, "INSTANCES_MAX", 2)
    for n in range(1, 5):
        push(clients, 80_000, instance_id=UUID(int=n))
        clients.pushed(UUID(int=n), [Point("m", (), 1.0)])
    assert (clients.instances, clients._series) == (2, 2)


def test_labels_are_few_and_short() -> None:
    attributes = {f"key-{n}": "v" * 1000 for n in range(20)} | {"__name__": "x", "9": "y"}
    data = otlp(Metric(name="m" * 1000, gauge=Gauge(data_points=[number(1, **attributes)])))
    (point,) = decoded_points(0, data)
    assert len(point.name) < 160
    assert len(point.labels) == client_metrics.LABELS_MAX
    assert all(len(key) <= 128 and len(value) <= 128 for key, value in point.labels)


def test_what_a_client_says_of_itself_is_remembered_up_to_a_length() -> None:
    long = "c" * 32_000
    clients, limit = ClientMetrics(), client_metrics.IDENTITY_LENGTH_MAX
    clients.subscriptions(ME, ClientIdentity(long, long, long), ALL, 1_000)
    kept = clients._instances[ME].identity
    assert (kept.client_id, kept.software_name, kept.software_version) == ("c" * limit,) * 3
    assert kept.attribute("client_id", ME) == "c" * limit
    clients.pushed(ME, [Point("a", (), 1.0)])
    (sample,) = clients.families()[0].samples
    assert sample.labels["client_id"] == "c" * client_metrics.LABEL_LENGTH_MAX
