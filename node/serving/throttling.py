"""The client quotas of the cluster at work on this node (KIP-13, KIP-124, KIP-219, KIP-612).

A request is charged when its response is made.  A client that has used more than its quota gets its response
at once, with the time for which it is to pause (`throttle_time_ms`), and the listener reads nothing from its
connection for that time: a pause costs no memory, and holds up no other client.  A fetch of a client whose
debt is not paid yet gets nothing but that time.

| quota | amount | charged by |
|---|---|---|
| `producer_byte_rate` | bytes of the batches | Produce |
| `consumer_byte_rate` | bytes of the batches | Fetch, the gRPC readers |
| `request_percentage` | the connection's CPU time on the loop; 100 is one core | every response |
| `controller_mutation_rate` | partitions that are made or deleted | the controller (KIP-599) |
| `connection_creation_rate` | connections of an address | the listener, which closes one too many |

Followers' fetches and requests between nodes are not charged; the same requests of a client that may not make
them are (as in Kafka).  A quota that changes holds from the next request on.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from math import ceil
from typing import Final

from prometheus_client.core import CounterMetricFamily, Metric
from prometheus_client.registry import Collector

from ...runtime.clock import Clock
from ...security.quotas import ClientQuotas, QuotaEntity, QuotaKind, QuotaWindow
from ...wire.api import ApiKey
from .requests import RequestContext

BETWEEN_NODES: Final = frozenset((ApiKey.WRITE_TXN_MARKERS, ApiKey.ADD_PARTITIONS_TO_TXN))
OF_AUTHENTICATION: Final = frozenset((ApiKey.SASL_HANDSHAKE, ApiKey.SASL_AUTHENTICATE))
THROTTLED_MAX: Final = 100
LABEL_CHARACTERS_MAX: Final = 200

Limits = Mapping[tuple[QuotaEntity, QuotaKind], float]


@dataclass(slots=True)
class Throttled:
    """The pauses of a client since it was throttled first."""

    times: int = 0
    seconds: float = 0.0


class Throttling:
    """See the module's text.  Used on the node's loop."""

    def __init__(
        self,
        limits: Callable[[], Limits],
        clock: Clock,
        window: QuotaWindow | None = None,
        *,
        may_act_as_node: Callable[[RequestContext], bool],
    ) -> None:
        """`limits`: the cluster's, as of now."""
        self._limits = limits
        self._may_act_as_node = may_act_as_node
        self._clock = clock
        self._quotas = ClientQuotas(window)
        self.throttled: OrderedDict[tuple[QuotaKind, str, str], Throttled] = OrderedDict()
        """The clients that were throttled last, by the names that share the quota."""

    def charge(self, context: RequestContext, kind: QuotaKind, amount: float) -> int:
        """Charges a client for its request and for the time of its connection: milliseconds that it
        pauses."""
        return max(self.charge_time(context), self.charge_client(kind, *_client(context), amount))

    def charge_time(self, context: RequestContext) -> int:
        """Charges a client for the time of its connection."""
        used_s = 0.0 if context.account is None else context.account.take_used_s()
        if not self._limits() or not _has_authenticated(context):
            return 0
        if _is_between_nodes(context) and self._may_act_as_node(context):
            return 0
        return self.charge_client(QuotaKind.REQUEST, *_client(context), 100 * used_s)

    def charge_client(self, kind: QuotaKind, user: str, client_id: str, amount: float) -> int:
        """Milliseconds that the client pauses."""
        limits = self._limits()
        if not limits:
            return 0
        pause_s = self._present(limits).charge(kind, user, client_id, amount, self._clock.monotonic())
        return self.paused(kind, user, client_id, pause_s)

    def has_debt(self, context: RequestContext, kind: QuotaKind) -> bool:
        """Whether the client has still to pause for what it has had."""
        return bool(self._limits()) and self.debt_s(kind, *_client(context)) > 0

    def debt_s(self, kind: QuotaKind, user: str, client_id: str) -> float:
        """Seconds that the client has still to pause."""
        limits = self._limits()
        return self._present(limits).debt_s(kind, user, client_id, self._clock.monotonic()) if limits else 0.0

    def rate(self, kind: QuotaKind, user: str, client_id: str) -> float | None:
        """The client's limit a second; None: it has none."""
        limits = self._limits()
        found = self._present(limits).limit(kind, user, client_id) if limits else None
        return None if found is None else found[0]

    def bytes_max(self, context: RequestContext, kind: QuotaKind) -> int | None:
        """What a client gets of one window, so that it does not pause for long; None: it has no limit."""
        rate = self.rate(kind, *_client(context)) if self._limits() else None
        return None if rate is None else max(1, int(rate * self._quotas.window.size_s))

    def admits_connection(self, address: str) -> bool:
        """Whether this address may open one more connection now."""
        limits = self._limits()
        return not limits or self._present(limits).admits_connection(address, self._clock.monotonic())

    def _present(self, limits: Limits) -> ClientQuotas:
        self._quotas.set_limits(limits)
        return self._quotas

    def paused(self, kind: QuotaKind, user: str, client_id: str, pause_s: float) -> int:
        """Counts the pause of a client: its milliseconds."""
        found = self._quotas.limit(kind, user, client_id)
        if pause_s <= 0 or found is None:
            return 0
        key = (kind, *found[1])
        throttled = self.throttled.get(key)
        if throttled is None:
            throttled = self.throttled[key] = Throttled()
            if len(self.throttled) > THROTTLED_MAX:
                self.throttled.popitem(last=False)
        else:
            self.throttled.move_to_end(key)
        throttled.times += 1
        throttled.seconds += pause_s
        return ceil(1000 * pause_s)


def _is_between_nodes(context: RequestContext) -> bool:
    """Of a transaction coordinator to a leader, or the other way round."""
    return context.api_key in BETWEEN_NODES and (
        context.api_key != ApiKey.ADD_PARTITIONS_TO_TXN or context.api_version >= 4
    )


def _has_authenticated(context: RequestContext) -> bool:
    """A client without an identity has no quota; what it asks before is bounded by its listener."""
    authentication = context.authentication
    return context.api_key not in OF_AUTHENTICATION and (authentication is None or authentication.is_over)


def _client(context: RequestContext) -> tuple[str, str]:
    return context.principal.name, context.client_id


class ThrottledCollector(Collector):
    """The clients that were throttled last, for /metrics: `THROTTLED_MAX` of them."""

    def __init__(self, throttling: Throttling) -> None:
        self._throttling = throttling

    def describe(self) -> Iterable[Metric]:
        return []

    def collect(self) -> Iterator[Metric]:
        labels = ["quota", "user", "client_id"]
        times = CounterMetricFamily(
            "tidegate_throttled_requests", "Requests after which a client had to pause.", labels=labels
        )
        seconds = CounterMetricFamily("tidegate_throttled_seconds", "These pauses.", labels=labels)
        for (kind, *sharers), throttled in self._throttling.throttled.items():
            values = [kind.value, *(name[:LABEL_CHARACTERS_MAX] for name in sharers)]
            times.add_metric(values, throttled.times)
            seconds.add_metric(values, throttled.seconds)
        yield times
        yield seconds
