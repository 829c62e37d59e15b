"""Listeners' text is read as Kafka reads it: the same values, and the same words for what is wrong."""

from __future__ import annotations

import pytest
from tidegate.runtime.connections.listeners import (
    Listener,
    ListenerError,
    SecurityProtocol,
    parse_listener,
    parse_listeners,
    parse_security_protocols,
)

MAP = "listener.security.protocol.map"
PLAINTEXT = dict.fromkeys(("PLAINTEXT", "EXTERNAL", "INTERNAL"), SecurityProtocol.PLAINTEXT)


@pytest.mark.parametrize(
    ("text", "name", "host", "port"),
    [
        ("PLAINTEXT://localhost:9092", "PLAINTEXT", "localhost", 9092),
        ("plaintext://LOCALHOST:9092", "PLAINTEXT", "LOCALHOST", 9092),
        ("PLAINTEXT://:9092", "PLAINTEXT", "", 9092),
        ("PLAINTEXT://0.0.0.0:0", "PLAINTEXT", "0.0.0.0", 0),
        ("PLAINTEXT://[::1]:9092", "PLAINTEXT", "::1", 9092),
        ("PLAINTEXT://::1:9092", "PLAINTEXT", "::1", 9092),
        ("CLIENT-1://broker_1.dom:19092", "CLIENT-1", "broker_1.dom", 19092),
    ],
)
def test_a_listener_is_a_name_a_host_and_a_port(text: str, name: str, host: str, port: int) -> None:
    assert parse_listener(text) == Listener(name, host, port)


def test_a_listener_is_written_as_it_is_read() -> None:
    for text in ("PLAINTEXT://localhost:9092", "GRPC://[::1]:9093", "METRICS://:9095"):
        assert str(parse_listener(text)) == text
    assert parse_listener("GRPC://[::1]:9093").address == "[::1]:9093"


@pytest.mark.parametrize(
    ("text", "message"),  # what a Kafka 4.1.1 said
    [
        ("9092", "Unable to parse a listener name from 9092"),
        ("PLAINTEXT://localhost", "Unable to parse PLAINTEXT://localhost to a broker endpoint"),
        ("PLAINTEXT:localhost:9092", "Unable to parse PLAINTEXT:localhost:9092 to a broker endpoint"),
        ("PLAINTEXT://a b:9092", "Unable to parse PLAINTEXT://a b:9092 to a broker endpoint"),
        ("PLAINTEXT://node:\u0662", "Unable to parse PLAINTEXT://node:\u0662 to a broker endpoint"),
        ("://localhost:1", "The provided listener name is null or empty string"),
    ],
)
def test_what_is_no_listener_is_refused_in_kafkas_words(text: str, message: str) -> None:
    with pytest.raises(ListenerError) as error:
        parse_listener(text)
    assert str(error.value) == message


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("PLAINTEXT://localhost:70000", "70000 is no port"),
        ("PLAINTEXT://localhost:-1", "-1 is no port"),
        ("PLAINTEXT://node..dom:1", "the host 'node..dom' cannot be looked up: label empty or too long"),
    ],
)
def test_an_address_that_cannot_be_is_refused_though_kafka_reads_it(text: str, problem: str) -> None:
    with pytest.raises(ListenerError) as error:
        parse_listener(text)
    assert str(error.value) == f"Unable to parse {text} to a broker endpoint: {problem}"


def test_entries_without_text_are_left_out() -> None:
    found = parse_listeners(["PLAINTEXT://a:1", "", " "], PLAINTEXT, distinct_ports=True)
    assert [str(each) for each in found] == ["PLAINTEXT://a:1"]


@pytest.mark.parametrize(
    ("entries", "message"),
    [
        (
            ["PLAINTEXT://localhost:9092", "PLAINTEXT://localhost:9094"],
            "Each listener must have a different name, listeners: "
            "PLAINTEXT://localhost:9092,PLAINTEXT://localhost:9094",
        ),
        (
            ["PLAINTEXT://a:9092", "EXTERNAL://b:9092"],
            "Each listener must have a different port, listeners: PLAINTEXT://a:9092,EXTERNAL://b:9092",
        ),
        (["OTHER://a:9092"], "No security protocol defined for listener OTHER"),
    ],
)
def test_listeners_that_exclude_each_other_are_refused_in_kafkas_words(
    entries: list[str], message: str
) -> None:
    with pytest.raises(ListenerError) as error:
        parse_listeners(entries, PLAINTEXT, distinct_ports=True)
    assert str(error.value) == message


def test_one_port_serves_listeners_of_two_families_or_the_systems_choice() -> None:
    for entries in (
        ["PLAINTEXT://127.0.0.1:9092", "EXTERNAL://[::1]:9092"],
        ["PLAINTEXT://a:0", "EXTERNAL://b:0"],
    ):
        assert len(parse_listeners(entries, PLAINTEXT, distinct_ports=True)) == 2
    advertised = ["PLAINTEXT://balancer:9092", "EXTERNAL://balancer:9092"]
    assert len(parse_listeners(advertised, PLAINTEXT, distinct_ports=False)) == 2


def test_the_map_gives_each_listener_its_protocol() -> None:
    found = parse_security_protocols(["plaintext:plaintext", "EXTERNAL:SASL_SSL", "EXTERNAL:SSL"], MAP)
    assert found == {"PLAINTEXT": SecurityProtocol.PLAINTEXT, "EXTERNAL": SecurityProtocol.SSL}
    (listener,) = parse_listeners(["EXTERNAL://a:1"], found, distinct_ports=True)
    assert listener.security_protocol is SecurityProtocol.SSL


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        ("PLAINTEXT:PLAIN", f"Invalid security protocol `PLAIN` defined in {MAP}"),
        (":PLAINTEXT", "The provided listener name is null or empty string"),
        ("PLAINTEXT", f"Error parsing configuration property '{MAP}': 'PLAINTEXT' is not NAME:PROTOCOL"),
    ],
)
def test_an_entry_of_the_map_that_says_nothing_is_refused(entry: str, message: str) -> None:
    with pytest.raises(ListenerError) as error:
        parse_security_protocols([entry], MAP)
    assert str(error.value) == message
