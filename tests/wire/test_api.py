"""The table of requests agrees with Kafka's schemas, and with what clients in use need."""

from __future__ import annotations

import pytest
from kio.schema.index import api_key_map, schema_name_map
from tidegate.node.handlers import HANDLERS
from tidegate.wire import api
from tidegate.wire.api import SUPPORTED, TABLE, ApiKey
from tidegate.wire.schema import request_class, response_class


@pytest.mark.parametrize("key", list(ApiKey))
def test_versions_flexibility_and_headers_are_those_of_kafkas_schemas(key: ApiKey) -> None:
    spec = TABLE[key]
    assert api_key_map[key] == spec.schema
    for version in range(spec.low, spec.high + 1):
        request, response = request_class(key, version), response_class(key, version)
        assert api.is_flexible(key, version) == request.__flexible__
        assert api.request_header_version(key, version) == request.__header_schema__.__version__
        assert api.response_header_version(key, version) == response.__header_schema__.__version__
    assert spec.low == min(schema_name_map[spec.schema])
    assert spec.high <= max(schema_name_map[spec.schema])


def test_produce_is_advertised_from_version_0_although_served_from_3() -> None:
    """librdkafka 2.0 sends gzip, snappy and lz4 uncompressed, silently, when the advertised minimum is
    higher."""
    assert (0, 0, 13) in api.advertised(list(ApiKey))
    assert SUPPORTED[ApiKey.PRODUCE] == (3, 13)
    assert not api.is_supported(ApiKey.PRODUCE, 2)
    assert api.is_supported(ApiKey.PRODUCE, 3)


# What clients in use send, by key: the lowest and the highest version that a broker should serve (Java 3.9
# and 4.2, librdkafka 2, kafka-python 3, aiokafka, kafkajs, franz-go), with what transactions v2 (KIP-890) and
# consumer groups (KIP-848) need.
IN_USE = {
    0: (3, 13), 1: (4, 18), 2: (1, 10), 3: (0, 13), 8: (2, 9), 9: (1, 9), 10: (0, 6), 11: (0, 9), 12: (0, 4),
    13: (0, 5), 14: (0, 5), 15: (0, 5), 16: (0, 4), 18: (0, 3), 19: (2, 7), 20: (1, 6), 21: (0, 2),
    22: (0, 5),
    23: (2, 4), 24: (0, 5), 25: (0, 3), 26: (0, 5), 27: (1, 1), 28: (0, 5), 32: (1, 4), 33: (0, 2),
    37: (0, 3),
    42: (0, 2), 43: (0, 2), 44: (0, 1), 45: (0, 1), 46: (0, 0), 47: (0, 0), 60: (0, 1), 61: (0, 0),
    65: (0, 0),
    66: (0, 2), 68: (0, 1), 69: (0, 1), 75: (0, 0),
}  # fmt: skip
# Advertised, these would be used: share groups.
NOT_SERVED = {76, 77, 78, 79}


@pytest.mark.parametrize(("key", "wanted"), IN_USE.items(), ids=lambda value: str(value))
def test_what_clients_in_use_send_is_advertised_and_served(key: int, wanted: tuple[int, int]) -> None:
    (found,) = [(low, high) for number, low, high in api.advertised(HANDLERS.keys) if number == key]
    assert found[0] <= wanted[0]
    assert found[1] >= wanted[1]
    assert all(api.is_supported(key, version) for version in range(wanted[0], wanted[1] + 1))


def test_what_is_not_served_is_not_advertised() -> None:
    """A client that finds such a key uses it."""
    assert not NOT_SERVED & {key for key, _, _ in api.advertised(HANDLERS.keys)}


def test_offset_delete_never_became_flexible() -> None:
    assert not api.is_flexible(ApiKey.OFFSET_DELETE, 0)
    assert api.response_header_version(ApiKey.OFFSET_DELETE, 0) == 0


def test_only_requests_with_a_handler_are_advertised() -> None:
    assert api.advertised([18, 3, 12345]) == [(3, 0, 13), (18, 0, 4)]


def test_transactions_v2_has_the_versions_it_needs() -> None:
    needed = {ApiKey.PRODUCE: 13, ApiKey.INIT_PRODUCER_ID: 6, ApiKey.END_TXN: 5, ApiKey.TXN_OFFSET_COMMIT: 5}
    assert {key: SUPPORTED[key][1] for key in needed} == needed, "6 is two-phase commit"


def test_the_lowest_versions_that_java_4_asks_for_are_served() -> None:
    java = {0: 3, 1: 4, 2: 1, 8: 2, 9: 1, 23: 2, 19: 2, 20: 1, 32: 1, 27: 1}
    assert all(api.is_supported(key, version) for key, version in java.items())
