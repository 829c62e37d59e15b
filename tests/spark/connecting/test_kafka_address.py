"""The gRPC address by a node's Kafka address, when some brokers are down or have none."""

from __future__ import annotations

from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

import pytest
from tidegate.spark.connecting import kafka_address
from tidegate.wire.api import ApiKey

Settings = dict[str, str | None]
GRPC: Settings = {
    "grpc.listener.name": "DATA",
    "advertised.listeners": "CLIENT://a:1,DATA://a:7",
    "listeners": "CLIENT://0.0.0.0:1",
}
NO_GRPC: Settings = {"grpc.listener.name": None, "listeners": "CLIENT://a:1"}


def found(monkeypatch: pytest.MonkeyPatch, brokers: Mapping[str, Settings | None]) -> tuple[Any, list[str]]:
    """What is found by the first of these brokers (by address; None: it does not answer), and who was
    asked."""
    asked: list[str] = []

    def ask(address: str, api_key: ApiKey, version: int, fields: Mapping[str, Any]) -> Any:
        if api_key is ApiKey.METADATA:
            named = [each.split(":") for each in sorted(brokers)]
            return SimpleNamespace(
                brokers=[
                    SimpleNamespace(host=host, port=port, node_id=number)
                    for number, (host, port) in enumerate(named)
                ]
            )
        asked.append(address)
        settings = brokers[address]
        if settings is None:
            raise ConnectionRefusedError(address)
        configs = [SimpleNamespace(name=name, value=value) for name, value in settings.items()]
        return SimpleNamespace(results=[SimpleNamespace(configs=configs)])

    monkeypatch.setattr(kafka_address, "_ask", ask)
    return kafka_address.grpc_addresses(next(iter(brokers))), asked


def test_the_broker_that_was_named_is_asked_first(monkeypatch: pytest.MonkeyPatch) -> None:
    assert found(monkeypatch, {"b:1": GRPC, "a:1": GRPC}) == (("a:7",), ["b:1"])


@pytest.mark.parametrize("first", [None, NO_GRPC, {**GRPC, "advertised.listeners": "no listener"}])
def test_a_broker_without_an_address_is_passed_over(
    monkeypatch: pytest.MonkeyPatch, first: Settings | None
) -> None:
    assert found(monkeypatch, {"a:1": first, "b:1": GRPC}) == (("a:7",), ["a:1", "b:1"])


def test_only_some_brokers_are_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    brokers: dict[str, Settings | None] = dict.fromkeys(("a:1", "b:1", "c:1"))
    assert found(monkeypatch, brokers | {"d:1": GRPC}) == ((), ["a:1", "b:1", "c:1"])


def test_a_node_of_the_version_before_has_a_setting_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    former: Settings = {"advertised.grpc": "a:9", "listeners.grpc": "0.0.0.0:9"}
    assert found(monkeypatch, {"a:1": former}) == (("a:9",), ["a:1"])


def test_what_is_no_kafka_listener_names_none(monkeypatch: pytest.MonkeyPatch) -> None:
    def ask(*_: Any) -> Any:
        raise ConnectionResetError

    monkeypatch.setattr(kafka_address, "_ask", ask)
    assert kafka_address.grpc_addresses("a:1") == ()


def test_a_listener_of_ipv6_is_asked_without_its_brackets_and_not_for_long(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[tuple[str, int, float]] = []

    def ask_frame(host: str, port: int, request: bytes, timeout_s: float) -> bytes:
        asked.append((host, port, timeout_s))
        raise ConnectionRefusedError

    monkeypatch.setattr(kafka_address, "ask_frame", ask_frame)
    assert kafka_address.grpc_addresses("[::1]:9092") == ()
    assert asked == [("::1", 9092, kafka_address.ANSWER_TIMEOUT_S)]
