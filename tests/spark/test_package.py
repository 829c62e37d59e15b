"""What a program imports from `tidegate.spark`."""

from __future__ import annotations

import pytest
import tidegate.spark
from tidegate.spark.connecting.errors import ReadError
from tidegate.spark.options import OptionError


@pytest.mark.parametrize("name", tidegate.spark.__all__)
def test_each_name_that_the_package_tells_is_there(name: str) -> None:
    assert getattr(tidegate.spark, name).__name__ == name


def test_the_errors_are_those_that_calls_raise() -> None:
    assert tidegate.spark.ReadError is ReadError
    assert tidegate.spark.OptionError is OptionError


def test_another_name_is_no_attribute() -> None:
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = tidegate.spark.nothing
