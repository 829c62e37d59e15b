"""Metrics that clients push (KIP-714): which client pushes what, how often, and which of it /metrics shows.

`ClientMetrics` decides as Kafka's manager does: which subscriptions fit a client, whether a request comes too
early, what is wrong with a push.  Nothing that a client can choose grows without bound: instances, series of
one client, series of all, and the length of every label have their limits; what is over them is counted and
left out.  Series of a client that is gone, or silent for three of its intervals, go.

Pure: times are given, and what was pushed comes decoded (`decoded_points`).
"""

from __future__ import annotations

import re
from base64 import urlsafe_b64encode
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final
from uuid import UUID

from crc32c import crc32c
from google.protobuf.message import DecodeError
from opentelemetry.proto.metrics.v1.metrics_pb2 import AggregationTemporality, Metric, MetricsData
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.core import Metric as Family
from prometheus_client.registry import Collector

from ...controller.state.resource_settings import (
    INTERVAL,
    MATCH,
    METRICS,
    ClientPattern,
    ResourceType,
    matching_patterns,
)
from ...storage.topic_config import split_list
from ...wire.compression import Compression, decompress
from ...wire.errors import ErrorCode, KafkaError

TELEMETRY_BYTES_MAX: Final = 1 << 20
UNFOLDED_BYTES_MAX: Final = 4 << 20
INTERVAL_MS_DEFAULT: Final = 300_000
ACCEPTED_COMPRESSION: Final = (Compression.ZSTD, Compression.LZ4, Compression.GZIP, Compression.SNAPPY)
INSTANCES_MAX: Final = 16_384
SERIES_MAX: Final = 2_000
SERIES_OF_A_CLIENT_MAX: Final = 200
LABELS_MAX: Final = 8
LABEL_LENGTH_MAX: Final = 128
IDENTITY_LENGTH_MAX: Final = 256
"""What a client says of itself is remembered, and compared with patterns, up to here."""
SILENT_INTERVALS_MAX: Final = 3
NO_INSTANCE: Final = UUID(int=0)
ALL_METRICS: Final = "*"
_FAMILY_PREFIX: Final = "tidegate_client_"
_NOT_IN_NAMES = re.compile(r"[^a-zA-Z0-9_]")

ResourceConfigs = Mapping[tuple[int, str], Mapping[str, str]]
SeriesKey = tuple[str, bool, tuple[tuple[str, str], ...]]


@dataclass(slots=True, frozen=True)
class ClientIdentity:
    """What subscriptions choose clients by, and labels say of them."""

    client_id: str
    software_name: str = ""
    software_version: str = ""
    source_address: str = ""
    source_port: int = 0

    def __post_init__(self) -> None:
        for name in ("client_id", "software_name", "software_version"):
            object.__setattr__(self, name, getattr(self, name)[:IDENTITY_LENGTH_MAX])

    def attribute(self, selector: str, instance_id: UUID) -> str:
        match selector:
            case "client_instance_id":
                return encoded(instance_id)
            case "client_id":
                return self.client_id
            case "client_software_name":
                return self.software_name
            case "client_software_version":
                return self.software_version
            case "client_source_address":
                return self.source_address
            case _:
                return str(self.source_port)


@dataclass(slots=True, frozen=True)
class Subscription:
    """What one client is to push: prefixes of metrics (an empty one: all; none at all: nothing)."""

    subscription_id: int
    interval_ms: int
    metrics: tuple[str, ...]


@dataclass(slots=True, frozen=True)
class Point:
    """One value of one series.  `delta`: to be added to what was there."""

    name: str
    labels: tuple[tuple[str, str], ...]
    value: float
    counter: bool = False
    delta: bool = False

    @property
    def key(self) -> SeriesKey:
        return self.name, self.counter, self.labels


@dataclass(slots=True)
class Instance:
    """One client, as long as it is remembered."""

    identity: ClientIdentity
    subscription: Subscription
    configs: ResourceConfigs
    got_at_ms: int = 0
    pushed_at_ms: int = 0
    seen_at_ms: int = 0
    terminating: bool = False
    last_error: ErrorCode = ErrorCode.NONE
    series: dict[SeriesKey, float] = field(default_factory=dict)


@dataclass(slots=True, frozen=True)
class Answer:
    """To GetTelemetrySubscriptions."""

    instance_id: UUID
    error: ErrorCode
    subscription: Subscription


def encoded(instance_id: UUID) -> str:
    """As Kafka writes ids."""
    return urlsafe_b64encode(instance_id.bytes).decode().rstrip("=")


class ClientMetrics:
    """The clients of one node."""

    def __init__(self) -> None:
        self._instances: OrderedDict[UUID, Instance] = OrderedDict()
        self._subscriptions: list[tuple[Mapping[str, ClientPattern], tuple[str, ...], int]] = []
        self._configs: ResourceConfigs = {}
        self._looked_at: ResourceConfigs | None = None
        self._found = False
        self._series = 0
        self.dropped = 0
        """Values that were over a limit."""
        self.pushes = 0
        self.errors = 0

    # ---- requests ------------------------------------------------------------------------------------------

    def has_subscriptions(self, configs: ResourceConfigs) -> bool:
        """Whether any client may be asked for its metrics."""
        if configs is not self._looked_at:  # the metadata never change in place
            self._looked_at, self._found = (
                configs,
                any(kind == ResourceType.CLIENT_METRICS for kind, _ in configs),
            )
        return self._found

    def subscriptions(
        self, instance_id: UUID, identity: ClientIdentity, configs: ResourceConfigs, now_ms: int
    ) -> Answer:
        """GetTelemetrySubscriptions.  `instance_id` was drawn by the caller for a client that had none."""
        instance = self._instance(instance_id, identity, configs, now_ms)
        early = now_ms - max(instance.got_at_ms, instance.pushed_at_ms) < instance.subscription.interval_ms
        asked_again = instance.last_error in (
            ErrorCode.UNKNOWN_SUBSCRIPTION_ID,
            ErrorCode.UNSUPPORTED_COMPRESSION_TYPE,
        )
        if early and not asked_again:
            instance.last_error = ErrorCode.THROTTLING_QUOTA_EXCEEDED
            return Answer(instance_id, ErrorCode.THROTTLING_QUOTA_EXCEEDED, instance.subscription)
        instance.got_at_ms, instance.last_error = now_ms, ErrorCode.NONE
        return Answer(instance_id, ErrorCode.NONE, instance.subscription)

    def check_push(
        self,
        instance_id: UUID,
        identity: ClientIdentity,
        configs: ResourceConfigs,
        now_ms: int,
        *,
        subscription_id: int,
        terminating: bool,
        compression: int,
        size: int,
    ) -> None:
        """Raises KafkaError for a push that is not taken."""
        if instance_id == NO_INSTANCE:
            raise KafkaError(
                ErrorCode.INVALID_REQUEST, "Invalid request from the client, invalid client instance id"
            )
        instance = self._instance(instance_id, identity, configs, now_ms)
        try:
            self._check(instance, now_ms, subscription_id, terminating, compression, size)
        except KafkaError as error:
            instance.last_error = error.code
            self.errors += 1
            raise
        instance.terminating = terminating
        instance.last_error = ErrorCode.NONE

    @staticmethod
    def _check(
        instance: Instance, now_ms: int, subscription_id: int, terminating: bool, compression: int, size: int
    ) -> None:
        if instance.terminating:
            raise KafkaError(
                ErrorCode.INVALID_REQUEST, "Client should not send any push request after terminating"
            )
        first_since_asked = instance.got_at_ms > instance.pushed_at_ms
        in_time = first_since_asked or now_ms - instance.pushed_at_ms >= instance.subscription.interval_ms
        if in_time:
            instance.pushed_at_ms = now_ms
        elif not terminating:
            raise KafkaError(ErrorCode.THROTTLING_QUOTA_EXCEEDED, "the push interval is not over")
        if subscription_id != instance.subscription.subscription_id:
            raise KafkaError(ErrorCode.UNKNOWN_SUBSCRIPTION_ID, "the subscriptions have changed")
        if compression != Compression.NONE and compression not in ACCEPTED_COMPRESSION:
            raise KafkaError(ErrorCode.UNSUPPORTED_COMPRESSION_TYPE, f"unknown compression {compression}")
        if size > TELEMETRY_BYTES_MAX:
            raise KafkaError(
                ErrorCode.TELEMETRY_TOO_LARGE,
                f"{size} bytes were pushed, at most {TELEMETRY_BYTES_MAX} are taken",
            )

    def pushed(self, instance_id: UUID, points: Iterable[Point]) -> None:
        """What was checked and decoded.  A client that terminates is forgotten with its series."""
        instance = self._instances.get(instance_id)
        if instance is None:
            return  # so many others came since that it was forgotten
        self.pushes += 1
        if instance.terminating:
            self._series -= len(instance.series)
            instance.series.clear()
            return
        for point in points:
            self._take(instance, point)

    def failed(self, instance_id: UUID) -> None:
        """What was pushed could not be read."""
        self.errors += 1
        if instance_id in self._instances:
            self._instances[instance_id].last_error = ErrorCode.INVALID_RECORD

    def _take(self, instance: Instance, point: Point) -> None:
        present = instance.series.get(point.key)
        if present is None:
            if len(instance.series) >= SERIES_OF_A_CLIENT_MAX or self._series >= SERIES_MAX:
                self.dropped += 1
                return
            self._series += 1
        instance.series[point.key] = point.value + (present or 0.0) if point.delta else point.value

    # ---- clients -------------------------------------------------------------------------------------------

    def _instance(
        self, instance_id: UUID, identity: ClientIdentity, configs: ResourceConfigs, now_ms: int
    ) -> Instance:
        instance = self._instances.get(instance_id)
        if instance is None:
            subscription = self._subscription(instance_id, identity, configs)
            instance = self._instances[instance_id] = Instance(identity, subscription, configs)
            while len(self._instances) > INSTANCES_MAX:
                self._series -= len(self._instances.popitem(last=False)[1].series)
        elif instance.configs is not configs:
            instance.subscription, instance.configs = (
                self._subscription(instance_id, identity, configs),
                configs,
            )
        instance.seen_at_ms = now_ms
        self._instances.move_to_end(instance_id)
        return instance

    def _subscription(
        self, instance_id: UUID, identity: ClientIdentity, configs: ResourceConfigs
    ) -> Subscription:
        if configs is not self._configs:
            self._configs, self._subscriptions = configs, list(_parsed(configs))
        wanted: set[str] = set()
        interval_ms = INTERVAL_MS_DEFAULT
        for patterns, metrics, each_ms in self._subscriptions:
            fits = (
                pattern.fits(identity.attribute(selector, instance_id))
                for selector, pattern in patterns.items()
            )
            if all(fits):
                wanted.update(metrics)
                interval_ms = min(interval_ms, each_ms)
        names = ("",) if ALL_METRICS in wanted else tuple(sorted(wanted))
        number = crc32c(f"{names}{interval_ms}".encode())
        return Subscription(number - (1 << 32) if number >= 1 << 31 else number, interval_ms, names)

    def expire(self, now_ms: int) -> None:
        """Clients that have been silent for long, the longest first."""
        while self._instances:
            instance_id, instance = next(iter(self._instances.items()))
            if now_ms - instance.seen_at_ms <= SILENT_INTERVALS_MAX * max(
                instance.subscription.interval_ms, 20_000
            ):
                return
            self._series -= len(instance.series)
            del self._instances[instance_id]

    # ---- metrics for Prometheus ----------------------------------------------------------------------------

    @property
    def instances(self) -> int:
        return len(self._instances)

    def families(self) -> list[Family]:
        """One a name, with a sample a series."""
        found: dict[str, Family] = {}
        for instance_id, instance in self._instances.items():
            client_labels = {
                "client_id": instance.identity.client_id[:LABEL_LENGTH_MAX],
                "client_instance_id": encoded(instance_id),
            }
            for (name, counter, labels), value in instance.series.items():
                family = found.get(name)
                if family is None:
                    kind = "counter" if counter else "gauge"
                    family = found[name] = Family(name, "Pushed by clients (KIP-714).", kind)
                family.add_sample(
                    f"{name}_total" if counter else name, {**dict(labels), **client_labels}, value
                )
        return list(found.values())


class ClientMetricsCollector(Collector):
    """What a scrape sees of them."""

    def __init__(self, clients: ClientMetrics) -> None:
        self._clients = clients

    def describe(self) -> Iterator[Family]:
        return iter(())

    def collect(self) -> Iterator[Family]:
        clients = self._clients
        text = "Clients that asked what to push (KIP-714)."
        yield GaugeMetricFamily("tidegate_telemetry_clients", text, value=clients.instances)
        for name, text, value in (
            ("telemetry_pushes", "Pushes of clients' metrics that were taken.", clients.pushes),
            (
                "telemetry_errors",
                "Pushes of clients' metrics that were refused, or could not be read.",
                clients.errors,
            ),
            (
                "telemetry_dropped_values",
                "Values that clients pushed and that were over a limit.",
                clients.dropped,
            ),
        ):
            yield CounterMetricFamily(f"tidegate_{name}", text, value=value)
        yield from clients.families()


def _parsed(configs: ResourceConfigs) -> Iterator[tuple[Mapping[str, ClientPattern], tuple[str, ...], int]]:
    for (kind, _), config in configs.items():
        if kind != ResourceType.CLIENT_METRICS:
            continue
        metrics = tuple(split_list(config.get(METRICS, "")))
        if not metrics:
            continue
        try:
            yield (
                matching_patterns(config.get(MATCH, "")),
                metrics,
                int(config.get(INTERVAL, str(INTERVAL_MS_DEFAULT))),
            )
        except (KafkaError, ValueError):
            continue  # a later version let it in


# ---- what is in a push -------------------------------------------------------------------------------------


def decoded_points(compression: int, data: bytes) -> list[Point]:
    """What a push holds.  Raises KafkaError (INVALID_RECORD) when it cannot be read or unfolds to too
    much."""
    try:
        unfolded = decompress(Compression(compression), data, UNFOLDED_BYTES_MAX)
        parsed = MetricsData.FromString(bytes(unfolded))
    except (KafkaError, ValueError, DecodeError) as error:
        raise KafkaError(ErrorCode.INVALID_RECORD, f"the metrics cannot be read: {error}") from error
    points: list[Point] = []
    for metric in (
        metric
        for resource in parsed.resource_metrics
        for scope in resource.scope_metrics
        for metric in scope.metrics
    ):
        for point in _points(metric):
            # the rest would be dropped in any case, and is not looked at
            if len(points) >= 2 * SERIES_OF_A_CLIENT_MAX:
                return points
            points.append(point)
    return points


def _points(metric: Metric) -> Iterator[Point]:
    name = _FAMILY_PREFIX + _NOT_IN_NAMES.sub("_", metric.name[:LABEL_LENGTH_MAX])
    kind = metric.WhichOneof("data")
    if kind == "gauge":
        gauge = f"{name}_value" if name.endswith("_total") else name  # or it might be taken for a counter's
        for number in metric.gauge.data_points:
            yield Point(gauge, _labels(number.attributes), _value(number))
    elif kind == "sum":
        counter, delta = metric.sum.is_monotonic, _is_delta(metric.sum.aggregation_temporality)
        own = name.removesuffix("_total") if counter else f"{name}_sum"
        for number in metric.sum.data_points:
            yield Point(own, _labels(number.attributes), _value(number), counter, delta)
    elif kind == "histogram":
        delta = _is_delta(metric.histogram.aggregation_temporality)
        for each in metric.histogram.data_points:
            labels = _labels(each.attributes)
            yield Point(f"{name}_observations", labels, float(each.count), True, delta)
            yield Point(f"{name}_observed", labels, each.sum, True, delta)


def _is_delta(temporality: AggregationTemporality.ValueType) -> bool:
    return temporality == AggregationTemporality.AGGREGATION_TEMPORALITY_DELTA


def _value(number: object) -> float:
    which = number.WhichOneof("value")  # type: ignore[attr-defined]
    return float(getattr(number, which)) if which else 0.0


def _labels(attributes: object) -> tuple[tuple[str, str], ...]:
    found: dict[str, str] = {}
    for attribute in attributes:  # type: ignore[attr-defined]
        if len(found) >= LABELS_MAX:
            break
        kind = attribute.value.WhichOneof("value")
        if kind in ("string_value", "int_value", "double_value", "bool_value"):
            key = _NOT_IN_NAMES.sub("_", attribute.key[:LABEL_LENGTH_MAX])
            if key and not key[0].isdigit() and not key.startswith("__"):
                found[key] = str(getattr(attribute.value, kind))[:LABEL_LENGTH_MAX]
    return tuple(sorted(found.items()))
