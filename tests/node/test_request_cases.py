"""The cases of `tests/cluster/test_every_version.py` are of all requests.  It stands here because it needs no
node: a new request without a case fails the quick check."""

from __future__ import annotations

from tidegate.node.handlers import HANDLERS
from tidegate.tests.cluster import administration_cases, consumer_group_cases, security_cases
from tidegate.tests.cluster.protocol_cases import CASES
from tidegate.tests.cluster.test_every_version import WRITTEN_BY_HAND
from tidegate.wire import api


def test_there_is_a_case_for_every_request_that_is_announced() -> None:
    registered = (administration_cases, consumer_group_cases, security_cases)
    assert all(each.CASES is CASES for each in registered)
    assert set(CASES) | WRITTEN_BY_HAND == HANDLERS.keys == set(api.TABLE)
