"""The quotas of clients on a node: what is charged to whom, what holds from when on, and what is bounded."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import cast

import pytest
from tidegate.node.serving.authentication import Authentication
from tidegate.node.serving.requests import RequestContext
from tidegate.node.serving.throttling import THROTTLED_MAX, ThrottledCollector, Throttling
from tidegate.runtime.clock import ManualClock
from tidegate.runtime.turns import Account
from tidegate.security.quotas import QuotaEntity, QuotaKind
from tidegate.wire.api import ApiKey

Limits = dict[tuple[QuotaEntity, QuotaKind], float]
Kind = QuotaKind


class Cluster:
    """The limits of a cluster, as a test changes them."""

    def __init__(self) -> None:
        self.limits: Limits = {}
        self.clock = ManualClock()
        self.may_act_as_node = True
        self.throttling = Throttling(
            lambda: self.limits, self.clock, may_act_as_node=lambda _: self.may_act_as_node
        )

    def limit(self, kind: Kind, limit: float, **parts: str | None) -> None:
        entity = QuotaEntity.of({name.replace("_", "-"): value for name, value in parts.items()})
        self.limits = {**self.limits, (entity, kind): limit}

    def series(self) -> dict[tuple[str, ...], float]:
        times, _ = ThrottledCollector(self.throttling).collect()
        return {tuple(sample.labels.values()): sample.value for sample in times.samples}


@pytest.fixture
def cluster() -> Cluster:
    return Cluster()


def context(
    client_id: str = "app", key: ApiKey = ApiKey.METADATA, version: int = 4, used_s: float = 0.0
) -> RequestContext:
    """A request of ANONYMOUS, whose connection has used so much of the loop."""
    account = Account(0.0)
    account.use(used_s)
    return RequestContext(key, version, 1, client_id, "10.0.0.1", account=account)


def test_a_quota_holds_from_the_next_request_on(cluster: Cluster) -> None:
    throttling = cluster.throttling
    assert throttling.charge(context(), Kind.PRODUCE, 1e9) == 0
    cluster.limit(Kind.PRODUCE, 1000, client_id="app")
    assert throttling.charge(context(), Kind.PRODUCE, 3000) == 2000
    assert throttling.charge(context("other"), Kind.PRODUCE, 3000) == 0
    cluster.limit(Kind.PRODUCE, 4000, client_id="app")
    assert throttling.charge(context(), Kind.PRODUCE, 0) == 500
    cluster.limits = {}
    assert throttling.charge(context(), Kind.PRODUCE, 1e9) == 0


def test_a_share_of_the_loop_is_charged_by_cpu_time(cluster: Cluster) -> None:
    cluster.limit(Kind.REQUEST, 10, user="ANONYMOUS")
    assert cluster.throttling.charge_time(context(used_s=0.1)) == 0
    assert cluster.throttling.charge_time(context(used_s=0.05)) == 500
    assert cluster.throttling.charge_time(context(used_s=5)) == 1000, "one window at once"


def test_the_longer_of_two_pauses_counts(cluster: Cluster) -> None:
    cluster.limit(Kind.REQUEST, 10, user="ANONYMOUS")
    cluster.limit(Kind.PRODUCE, 1000, user="ANONYMOUS")
    assert cluster.throttling.charge(context(used_s=0.15), Kind.PRODUCE, 1200) == 500
    assert cluster.throttling.charge(context(), Kind.PRODUCE, 2000) == 2200


def test_time_from_before_a_quota_is_not_charged(cluster: Cluster) -> None:
    earlier = context(used_s=100)
    assert cluster.throttling.charge_time(earlier) == 0
    cluster.limit(Kind.REQUEST, 10, user="ANONYMOUS")
    assert cluster.throttling.charge_time(earlier) == 0


@pytest.mark.parametrize(
    ("key", "version"),
    [
        (ApiKey.WRITE_TXN_MARKERS, 1),
        (ApiKey.ADD_PARTITIONS_TO_TXN, 4),
        (ApiKey.SASL_HANDSHAKE, 1),
        (ApiKey.SASL_AUTHENTICATE, 2),
    ],
)
def test_nodes_and_authentication_are_not_charged(cluster: Cluster, key: ApiKey, version: int) -> None:
    cluster.limit(Kind.REQUEST, 1, user=None)
    assert cluster.throttling.charge_time(context(key=key, version=version, used_s=5)) == 0
    assert cluster.throttling.charge_time(context(key=ApiKey.ADD_PARTITIONS_TO_TXN, version=3, used_s=5))


@pytest.mark.parametrize(
    ("key", "version"), [(ApiKey.WRITE_TXN_MARKERS, 1), (ApiKey.ADD_PARTITIONS_TO_TXN, 4)]
)
def test_a_client_pays_for_what_only_nodes_may_ask(cluster: Cluster, key: ApiKey, version: int) -> None:
    """Else it would evade its quota with requests that are refused."""
    cluster.limit(Kind.REQUEST, 1, user=None)
    cluster.may_act_as_node = False
    assert cluster.throttling.charge_time(context(key=key, version=version, used_s=5))


def test_what_comes_before_authentication_is_not_charged(cluster: Cluster) -> None:
    """ApiVersions, before the client has a principal."""
    cluster.limit(Kind.REQUEST, 1, user=None)
    authentication = cast(Authentication, SimpleNamespace(is_over=False))
    asked = replace(context(key=ApiKey.API_VERSIONS, used_s=5), authentication=authentication)
    assert cluster.throttling.charge_time(asked) == 0


def test_a_fetch_gets_what_comes_in_one_window(cluster: Cluster) -> None:
    assert cluster.throttling.bytes_max(context(), Kind.FETCH) is None
    cluster.limit(Kind.FETCH, 12_345.6, client_id=None)
    assert cluster.throttling.bytes_max(context(), Kind.FETCH) == 12_345
    assert not cluster.throttling.has_debt(context(), Kind.FETCH)
    cluster.throttling.charge(context(), Kind.FETCH, 30_000)
    assert cluster.throttling.has_debt(context(), Kind.FETCH)
    cluster.clock.advance(2)
    assert not cluster.throttling.has_debt(context(), Kind.FETCH)


def test_connections_of_an_address(cluster: Cluster) -> None:
    assert cluster.throttling.admits_connection("10.0.0.1")
    cluster.limit(Kind.CONNECTION, 2, ip=None)
    assert [cluster.throttling.admits_connection("10.0.0.1") for _ in range(3)] == [True, True, False]
    assert cluster.throttling.admits_connection("10.0.0.2")
    cluster.clock.advance(0.5)
    assert cluster.throttling.admits_connection("10.0.0.1")


def test_metrics_name_who_is_throttled(cluster: Cluster) -> None:
    cluster.limit(Kind.PRODUCE, 1000, user="ANONYMOUS")
    cluster.throttling.charge(context(), Kind.PRODUCE, 500)
    assert cluster.series() == {}
    for _ in range(3):
        cluster.throttling.charge(context(), Kind.PRODUCE, 5000)
    assert cluster.series() == {("producer_byte_rate", "ANONYMOUS", ""): 3}


def test_metrics_keep_a_client_that_is_throttled_again_and_again(cluster: Cluster) -> None:
    cluster.limit(Kind.PRODUCE, 1, client_id=None)
    for number in range(THROTTLED_MAX + 50):
        cluster.throttling.charge(context("busy"), Kind.PRODUCE, 100)
        cluster.throttling.charge(context(f"{number}"), Kind.PRODUCE, 100)
    assert cluster.series()["producer_byte_rate", "", "busy"] == THROTTLED_MAX + 50


def test_metrics_of_many_throttled_clients_are_bounded(cluster: Cluster) -> None:
    cluster.limit(Kind.PRODUCE, 1, client_id=None)
    for number in range(THROTTLED_MAX + 50):
        cluster.throttling.charge(context(f"{number:05}" + "x" * 1000), Kind.PRODUCE, 100)
    series = cluster.series()
    assert len(series) == THROTTLED_MAX
    assert max(len(client_id) for _, _, client_id in series) <= 200
