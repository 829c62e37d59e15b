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

A limit is a bucket that fills at its rate and holds one window of it.  What a client does is never refused:
it is charged, and a bucket below zero makes the client pause until it is full enough again (KIP-219).
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Final

ENTITY_TYPES: Final = ("user", "client-id", "ip")
BUCKETS_MAX: Final = 10_000
DEFAULT: Final = None
"""The name of an entity that stands for all without a limit of their own."""


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


def _entities(user: str, client_id: str) -> tuple[tuple[QuotaEntity, tuple[str, str]], ...]:
    """Each entity that may have this client's limit, with the pair that shares it."""
    both, of_user, of_client = (user, client_id), (user, ""), ("", client_id)
    choices: tuple[tuple[Mapping[str, str | None], tuple[str, str]], ...] = (
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

    def change(self, rate: float, now_s: float) -> None:
        """Another rate from now on; a debt is paid at it."""
        self._fill(now_s)
        self.rate = rate
        self._level = min(self._level, rate * self.window_s)

    def _fill(self, now_s: float) -> None:
        elapsed_s = max(0.0, now_s - self._at_s)
        self._at_s = now_s
        self._level = min(self.rate * self.window_s, self._level + elapsed_s * self.rate)


class ClientQuotas:
    """The limits that are set, and the buckets of the clients that were charged last."""

    def __init__(self, window_s: float = 1.0) -> None:
        self._window_s = window_s
        self._limits: dict[tuple[QuotaKind, QuotaEntity], float] = {}
        self._of_kind: dict[QuotaKind, int] = {}
        self._buckets: OrderedDict[tuple[QuotaKind, tuple[str, str]], Bucket] = OrderedDict()

    def set_limit(self, kind: QuotaKind, entity: QuotaEntity, limit: float | None) -> None:
        """None: the entity has no limit of this kind any more.  Raises ValueError for one that is not above
        zero."""
        if limit is not None and not limit > 0:
            raise ValueError(f"Quota {kind.value} must be greater than 0")
        had = self._limits.pop((kind, entity), None)
        if limit is not None:
            self._limits[kind, entity] = limit
        self._of_kind[kind] = self._of_kind.get(kind, 0) + (limit is not None) - (had is not None)

    def limits(self) -> Mapping[tuple[QuotaKind, QuotaEntity], float]:
        return self._limits

    def limit(self, kind: QuotaKind, user: str, client_id: str) -> tuple[float, tuple[str, str]] | None:
        """The rate of this client, and the pair that shares it; None: it has none."""
        if not self._of_kind.get(kind):
            return None
        for entity, shared in _entities(user, client_id):
            found = self._limits.get((kind, entity))
            if found is not None:
                return found, shared
        return None

    def address_limit(self, address: str) -> float | None:
        """How many connections a second an address may open."""
        kind = QuotaKind.CONNECTION
        own = self._limits.get((kind, QuotaEntity((("ip", address),))))
        return own if own is not None else self._limits.get((kind, QuotaEntity((("ip", DEFAULT),))))

    def charge(self, kind: QuotaKind, user: str, client_id: str, amount: float, now_s: float) -> float:
        """How many seconds the client pauses after this."""
        found = self.limit(kind, user, client_id)
        return 0.0 if found is None else self._charged(kind, found[1], found[0], amount, now_s)

    def charge_address(self, address: str, now_s: float) -> float:
        """How many seconds pass before the next connection of an address is accepted."""
        limit = self.address_limit(address)
        if limit is None:
            return 0.0
        return self._charged(QuotaKind.CONNECTION, (address, ""), limit, 1.0, now_s)

    def _charged(
        self, kind: QuotaKind, shared: tuple[str, str], rate: float, amount: float, now_s: float
    ) -> float:
        bucket = self._buckets.get((kind, shared))
        if bucket is None:
            bucket = self._buckets[kind, shared] = Bucket(rate, self._window_s, now_s)
            if len(self._buckets) > BUCKETS_MAX:
                self._buckets.popitem(last=False)
        else:
            self._buckets.move_to_end((kind, shared))
            if bucket.rate != rate:
                bucket.change(rate, now_s)
        return bucket.charge(amount, now_s)
