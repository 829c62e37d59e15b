"""Client quotas (KIP-13, KIP-124, KIP-546, KIP-599, KIP-612): which limit a client has, and when it pauses.
Pure: the clock is given.

A limit is set for an entity: a user, a client id, both, an address, each by name or as the default of all
without a limit of their own.  For one request the first of these entities that has a limit of the kind
decides, and those that it names share the limit:

| entity | shared by |
|---|---|
| the user and the client id | the clients of that user with that id |
| the user and the default client id | the clients of that user with the same id |
| the user | all clients of that user |
| the default user and the client id | the clients of the same user with that id |
| the default user and the default client id | the clients of the same user with the same id |
| the default user | all clients of the same user |
| the client id | all clients with that id |
| the default client id | all clients with the same id |

A limit is a bucket that fills at its rate and holds what comes in one window; that of controller mutations
holds what comes in `QuotaWindow.count` windows, as Kafka's does.  What a client does is not refused: it is
charged, and while its bucket is below zero the client pauses (KIP-219), for `QuotaWindow.pause_s_max` at
once, and for one window where its share of the node's time is the limit; the rest of the debt stays in the
bucket.  Only controller mutations may be refused (KIP-599).
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Final

ENTITY_TYPES: Final = ("user", "client-id", "ip")
BUCKETS_MAX: Final = 10_000
FOUND_MAX: Final = 10_000
NAME_CHARACTERS_MAX: Final = 1024
"""Of a client id, and longer than that of an entity; the rest is cut, so that the memory for buckets is
bounded."""
DEFAULT: Final = None
"""The name of an entity that stands for all without a limit of their own."""

Sharers = tuple[str, str]
"""The user and the client id of those that share a limit; empty: all."""


class QuotaKind(Enum):
    """What is limited; the value is the name of the setting."""

    PRODUCE = "producer_byte_rate"
    FETCH = "consumer_byte_rate"
    REQUEST = "request_percentage"
    CONTROLLER_MUTATION = "controller_mutation_rate"
    CONNECTION = "connection_creation_rate"


@dataclass(frozen=True, slots=True)
class QuotaEntity:
    """Entity types and names: `{"user": "alice", "client-id": None}` is alice's default client id.

    Hashable: the parts are sorted."""

    parts: tuple[tuple[str, str | None], ...]

    @classmethod
    def of(cls, parts: Mapping[str, str | None]) -> QuotaEntity:
        """Raises ValueError for types that Kafka does not have, or that cannot stand together."""
        unknown = sorted(set(parts) - set(ENTITY_TYPES))
        if unknown:
            raise ValueError(f"Unhandled client quota entity type: {unknown[0]}")
        if not parts:
            raise ValueError("Invalid empty client quota entity")
        if "ip" in parts and len(parts) > 1:
            raise ValueError(f"Invalid quota entity combination, ip entity should not be used with {parts}")
        if "" in parts.values():
            raise ValueError("Empty client quota entity name")
        return cls(tuple(sorted(parts.items())))


def _entities(user: str, client_id: str) -> tuple[tuple[QuotaEntity, Sharers], ...]:
    """Each entity that may have this client's limit, with the pair that shares it."""
    both, of_user, of_client = (user, client_id), (user, ""), ("", client_id)
    choices: tuple[tuple[Mapping[str, str | None], Sharers], ...] = (
        ({"user": user, "client-id": client_id}, both),
        ({"user": user, "client-id": DEFAULT}, both),
        ({"user": user}, of_user),
        ({"user": DEFAULT, "client-id": client_id}, both),
        ({"user": DEFAULT, "client-id": DEFAULT}, both),
        ({"user": DEFAULT}, of_user),
        ({"client-id": client_id}, of_client),
        ({"client-id": DEFAULT}, of_client),
    )
    return tuple((QuotaEntity(tuple(sorted(parts.items()))), shared) for parts, shared in choices)


class Bucket:
    """An allowance that grows by `rate` a second, up to `rate` times the window."""

    __slots__ = ("_at_s", "_level", "rate", "window_s")

    def __init__(self, rate: float, window_s: float, now_s: float) -> None:
        self.rate = rate
        self.window_s = window_s
        self._level = rate * window_s
        self._at_s = now_s

    def charge(self, amount: float, now_s: float) -> float:
        """Takes `amount` out; seconds until the level is zero again."""
        self._fill(now_s)
        self._level -= amount
        return max(0.0, -self._level / self.rate)

    def take(self, amount: float, now_s: float) -> bool:
        """Takes `amount` out if it is there.  An amount that the bucket never holds needs it to be full."""
        self._fill(now_s)
        if self._level < min(amount, self.rate * self.window_s):
            return False
        self._level -= amount
        return True

    def change(self, rate: float, now_s: float) -> None:
        """Another rate from now on; a debt is paid at it."""
        self._fill(now_s)
        self.rate = rate
        self._level = min(self._level, rate * self.window_s)

    def _fill(self, now_s: float) -> None:
        elapsed_s = max(0.0, now_s - self._at_s)
        self._at_s = now_s
        self._level = min(self.rate * self.window_s, self._level + elapsed_s * self.rate)


@dataclass(frozen=True, slots=True)
class QuotaWindow:
    """`quota.window.size.seconds` and `quota.window.num`."""

    size_s: float = 1.0
    count: int = 11

    @property
    def pause_s_max(self) -> float:
        return self.size_s * self.count


class ClientQuotas:
    """The limits that are set, and the buckets of the clients that were charged last."""

    def __init__(self, window: QuotaWindow | None = None, mutation_window: QuotaWindow | None = None) -> None:
        """`mutation_window`: of controller mutations."""
        self.window = window or QuotaWindow()
        self._mutation_window = mutation_window or QuotaWindow()
        self._limits: Mapping[tuple[QuotaEntity, QuotaKind], float] = {}
        self._kinds: frozenset[QuotaKind] = frozenset()
        self._found: dict[tuple[QuotaKind, Sharers], tuple[float, Sharers] | None] = {}
        self._buckets: OrderedDict[tuple[QuotaKind, Sharers], Bucket] = OrderedDict()

    def set_limits(self, limits: Mapping[tuple[QuotaEntity, QuotaKind], float]) -> None:
        """All limits from now on.  The same object as before: nothing has changed."""
        if limits is not self._limits:
            self._limits = limits
            self._kinds = frozenset(kind for _, kind in limits)
            self._found.clear()

    def limit(self, kind: QuotaKind, user: str, client_id: str) -> tuple[float, Sharers] | None:
        """The rate of this client, and those that share it; None: it has none."""
        if kind not in self._kinds:
            return None
        client_id = client_id[:NAME_CHARACTERS_MAX]
        key = (kind, (user, client_id))
        if key not in self._found:
            if len(self._found) >= FOUND_MAX:
                self._found.clear()
            self._found[key] = self._find(kind, user, client_id)
        return self._found[key]

    def _find(self, kind: QuotaKind, user: str, client_id: str) -> tuple[float, Sharers] | None:
        for entity, sharers in _entities(user, client_id):
            found = self._limits.get((entity, kind))
            if found is not None:
                return found, sharers
        return None

    def address_limit(self, address: str) -> float | None:
        """How many connections a second an address may open."""
        kind = QuotaKind.CONNECTION
        if kind not in self._kinds:
            return None
        own = self._limits.get((QuotaEntity((("ip", address),)), kind))
        return own if own is not None else self._limits.get((QuotaEntity((("ip", DEFAULT),)), kind))

    def charge(self, kind: QuotaKind, user: str, client_id: str, amount: float, now_s: float) -> float:
        """How many seconds the client pauses after this."""
        found = self.limit(kind, user, client_id)
        if found is None:
            return 0.0
        # Kafka's bounds
        pause_s_max = self.window.size_s if kind is QuotaKind.REQUEST else self.window.pause_s_max
        return min(self._bucket(kind, *found, now_s).charge(amount, now_s), pause_s_max)

    def admits_mutation(self, user: str, client_id: str, now_s: float) -> bool:
        """Whether the client may change the cluster (KIP-599): its bucket is not below zero."""
        return self.debt_s(QuotaKind.CONTROLLER_MUTATION, user, client_id, now_s) == 0.0

    def debt_s(self, kind: QuotaKind, user: str, client_id: str, now_s: float) -> float:
        """How many seconds the client pauses from now on."""
        return self.charge(kind, user, client_id, 0.0, now_s)

    def admits_connection(self, address: str, now_s: float) -> bool:
        """Whether an address may open one more connection; if so, that is charged."""
        limit = self.address_limit(address)
        if limit is None:
            return True
        bucket = self._bucket(QuotaKind.CONNECTION, limit, (address, ""), now_s)
        return bucket.take(1.0, now_s)

    def _bucket(self, kind: QuotaKind, rate: float, sharers: Sharers, now_s: float) -> Bucket:
        bucket = self._buckets.get((kind, sharers))
        if bucket is None:
            bucket = self._buckets[kind, sharers] = Bucket(rate, self._held_s(kind), now_s)
            if len(self._buckets) > BUCKETS_MAX:
                self._buckets.popitem(last=False)
        else:
            self._buckets.move_to_end((kind, sharers))
            if bucket.rate != rate:
                bucket.change(rate, now_s)
        return bucket

    def _held_s(self, kind: QuotaKind) -> float:
        """For how long a bucket fills."""
        if kind is QuotaKind.CONTROLLER_MUTATION:
            return self._mutation_window.size_s * self._mutation_window.count
        return self.window.size_s
