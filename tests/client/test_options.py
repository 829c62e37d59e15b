"""The settings of producers and consumers: their keywords, their defaults, and what is refused."""

from __future__ import annotations

from dataclasses import FrozenInstanceError, fields
from typing import Any

import pytest
from tidegate.client import Consumer, Producer
from tidegate.client.consuming.options import ConsumerOptions, ConsumerSettings
from tidegate.client.producing.options import ProducerOptions, ProducerSettings


@pytest.mark.parametrize(
    ("options", "settings"), [(ConsumerOptions, ConsumerSettings), (ProducerOptions, ProducerSettings)]
)
def test_every_option_is_a_keyword_of_the_same_type(options: Any, settings: Any) -> None:
    assert {each.name: each.type for each in fields(options)} == {
        name: hint.__forward_arg__ for name, hint in settings.__annotations__.items()
    }


def test_options_do_not_change() -> None:
    with pytest.raises(FrozenInstanceError):
        ConsumerOptions().group_id = "g"  # type: ignore[misc]


@pytest.mark.parametrize(
    ("client", "settings", "message"),
    [
        (Consumer, {"isolation": "clean"}, "read_committed or read_uncommitted"),
        (Consumer, {"auto_offset_reset": "newest"}, "earliest, latest, none"),
        (Producer, {"acks": 2}, "choose 'all', 1 or 0"),
        (Producer, {"acks": 1, "transactional_id": "t"}, "needs acks='all'"),
        (Producer, {"idempotent": False, "transactional_id": "t"}, "idempotent=True"),
        (Producer, {"transactional_id": ""}, "is empty"),
        (Producer, {"compression": "zip"}, "none, gzip"),
    ],
)
def test_a_value_that_cannot_be_meant_is_refused(client: Any, settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        client("127.0.0.1:1", **settings)


@pytest.mark.parametrize("client", [Consumer, Producer])
def test_an_unknown_keyword_is_refused(client: Any) -> None:
    with pytest.raises(TypeError, match="grup_id"):
        client("127.0.0.1:1", grup_id="g")
