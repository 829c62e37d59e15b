"""The types of requests are those of the versions that are served."""

from __future__ import annotations

import re
from pathlib import Path

from tidegate.wire import request_types
from tidegate.wire.api import TABLE, ApiKey

OWN_DECODERS = {ApiKey.PRODUCE, ApiKey.FETCH}


def test_a_type_names_the_lowest_and_the_highest_version_of_its_request() -> None:
    assert request_types.__file__ is not None
    source = Path(request_types.__file__).read_text()
    named: dict[str, set[int]] = {}
    for message, version, name in re.findall(
        r"from kio\.schema\.(\w+)\.v(\d+)\.request import \(?\s*(\w+Request) as \3V\2,?\s", source
    ):
        assert name.lower() == message.replace("_", "") + "request"
        named.setdefault(message, set()).add(int(version))
    served = {spec.schema: {spec.low, spec.high} for key, spec in TABLE.items() if key not in OWN_DECODERS}
    assert named == served
