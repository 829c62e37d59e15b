"""The table of requests agrees with Kafka's schemas, and with what clients in use need."""

from __future__ import annotations

import pytest
from kio.schema.index import api_key_map, schema_name_map
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
    assert spec.low == min(schema_name_map[spec.schema]) and spec.high <= max(schema_name_map[spec.schema])


def test_produce_is_advertised_from_version_0_although_served_from_3() -> None:
    """librdkafka 2.0 sends gzip, snappy and lz4 uncompressed, silently, when the advertised minimum is higher."""
    assert (0, 0, 12) in api.advertised(list(ApiKey))
    assert SUPPORTED[ApiKey.PRODUCE] == (3, 12)
    assert not api.is_supported(ApiKey.PRODUCE, 2) and api.is_supported(ApiKey.PRODUCE, 3)


def test_only_requests_with_a_handler_are_advertised() -> None:
    assert api.advertised([18, 3, 12345]) == [(3, 0, 12), (18, 0, 4)]


def test_fetch_stays_below_the_versions_with_topic_ids() -> None:
    assert SUPPORTED[ApiKey.FETCH][1] == 12


def test_transactions_v2_has_the_versions_it_needs() -> None:
    needed = {ApiKey.PRODUCE: 12, ApiKey.INIT_PRODUCER_ID: 5, ApiKey.END_TXN: 5, ApiKey.TXN_OFFSET_COMMIT: 5}
    assert {key: SUPPORTED[key][1] for key in needed} == needed


def test_the_lowest_versions_that_java_4_asks_for_are_served() -> None:
    java = {0: 3, 1: 4, 2: 1, 8: 2, 9: 1, 23: 2, 19: 2, 20: 1, 32: 1, 27: 1}
    assert all(api.is_supported(key, version) for key, version in java.items())
