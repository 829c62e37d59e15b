"""The table of error codes is Kafka's."""

from __future__ import annotations

import pickle

from kio.schema.errors import ErrorCode as KioErrorCode
from tidegate.wire.errors import ErrorCode, KafkaError


def test_numbers_names_and_retriability_are_those_of_kafkas_table() -> None:
    ours = {(code.name, int(code), code.retriable) for code in ErrorCode}
    assert ours == {(code.name.upper(), int(code), code.retriable) for code in KioErrorCode}


def test_a_number_from_a_newer_broker_is_an_unknown_server_error() -> None:
    assert ErrorCode.from_wire(1234) is ErrorCode.UNKNOWN_SERVER_ERROR
    assert ErrorCode.from_wire(47) is ErrorCode.INVALID_PRODUCER_EPOCH


def test_an_error_says_its_name_and_its_message_and_survives_pickling() -> None:
    error = KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER, "ask node 2")
    assert str(error) == "NOT_LEADER_OR_FOLLOWER: ask node 2"
    assert error.retriable
    copy = pickle.loads(pickle.dumps(error))
    assert (copy.code, copy.message) == (error.code, error.message)
    assert str(KafkaError(ErrorCode.CORRUPT_MESSAGE)) == "CORRUPT_MESSAGE"
