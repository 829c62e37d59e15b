"""Every error of the protocol has a family, the class that belongs to it, and a sentence that says what to
do."""

from __future__ import annotations

import pytest
from tidegate.client.connecting.errors import (
    ADVICE,
    FAMILY_ADVICE,
    AbortableError,
    Family,
    FatalError,
    ProducerFenced,
    RequestError,
    RetriableError,
    error_for,
    family,
)
from tidegate.wire.errors import ErrorCode

CLASSES = {
    Family.RETRIABLE: RetriableError, Family.ABORTABLE: AbortableError, Family.FENCED: ProducerFenced,
    Family.FATAL: FatalError,
    Family.REQUEST: RequestError,
}  # fmt: skip
FAILURES = [code for code in ErrorCode if code is not ErrorCode.NONE]


@pytest.mark.parametrize("code", FAILURES, ids=lambda code: code.name)
def test_every_error_says_what_failed_why_and_what_to_do(code: ErrorCode) -> None:
    error = error_for(code, "sending to flights-3", "as the broker put it")
    assert type(error) is CLASSES[family(code)]
    assert error.code is code
    advice = ADVICE.get(code) or FAMILY_ADVICE[family(code)]
    said = f"{code.name}: sending to flights-3: as the broker put it"
    assert str(error) == (said if advice is FAMILY_ADVICE[Family.REQUEST] else f"{said} ({advice})")
    assert str(error_for(code, "sending to flights-3")) == f"{code.name}: sending to flights-3 ({advice})"


# What Kafka's own clients make of the answers in a transaction (KIP-1050).
@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("COORDINATOR_NOT_AVAILABLE", Family.RETRIABLE), ("CONCURRENT_TRANSACTIONS", Family.RETRIABLE),
        ("NOT_LEADER_OR_FOLLOWER", Family.RETRIABLE), ("UNKNOWN_TOPIC_OR_PARTITION", Family.RETRIABLE),
        ("REQUEST_TIMED_OUT", Family.RETRIABLE), ("NETWORK_EXCEPTION", Family.RETRIABLE),
        ("TRANSACTION_ABORTABLE", Family.ABORTABLE), ("OUT_OF_ORDER_SEQUENCE_NUMBER", Family.ABORTABLE),
        ("ILLEGAL_GENERATION", Family.ABORTABLE), ("UNKNOWN_MEMBER_ID", Family.ABORTABLE),
        ("PRODUCER_FENCED", Family.FENCED), ("INVALID_PRODUCER_EPOCH", Family.FENCED),
        ("TRANSACTIONAL_ID_AUTHORIZATION_FAILED", Family.FATAL), ("UNSUPPORTED_VERSION", Family.FATAL),
        ("MESSAGE_TOO_LARGE", Family.REQUEST), ("INVALID_TOPIC_EXCEPTION", Family.REQUEST),
    ],
)  # fmt: skip
def test_errors_are_sorted_by_what_to_do_about_them(name: str, expected: Family) -> None:
    assert family(ErrorCode[name]) is expected
