"""What an executor unpickles, with the package and without it."""

from __future__ import annotations

import pickle
import sys

import pytest
import tidegate
from pyspark import cloudpickle
from pyspark.sql.types import StructType
from tidegate.spark.source import TidegateSource

READ = {"bootstrap": "a:1", "subscribe": "flights"}
WRITE = {"bootstrap": "a:1", "topic": "flights"}
COLUMNS = StructType().add("value", "binary")
SENT = [
    TidegateSource(READ),  # goes along with its reader
    TidegateSource(READ).reader(COLUMNS),
    TidegateSource(READ).streamReader(COLUMNS),
    TidegateSource(WRITE).writer(COLUMNS, overwrite=False),
    TidegateSource(WRITE).streamWriter(COLUMNS, overwrite=False),
]

each = pytest.mark.parametrize("sent", SENT, ids=lambda sent: type(sent).__name__)


def state(sent: object) -> dict[str, object]:
    return {name: getattr(value, "__dict__", value) for name, value in vars(sent).items()}


@each
def test_readers_and_writers_arrive_as_they_were(sent: object) -> None:
    arrived = pickle.loads(cloudpickle.dumps(sent))
    assert type(arrived) is type(sent)
    assert state(arrived) == state(sent)


@each
def test_an_executor_without_the_package_names_it_and_the_remedy(
    sent: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    pickled = cloudpickle.dumps(sent)
    for module in [name for name in sys.modules if name.partition(".")[0] == "tidegate"]:
        monkeypatch.setitem(sys.modules, module, None)  # as if it was not there
    with pytest.raises(RuntimeError, match="has no package 'tidegate': give the executors") as error:
        pickle.loads(pickled)
    assert f"({sys.executable} on " in str(error.value)
    assert error.value.__context__ is None


def test_a_source_of_a_users_program_travels_by_value() -> None:
    """As in a notebook, whose classes an executor cannot import."""

    class Own(TidegateSource):
        limit = 7

    arrived = pickle.loads(cloudpickle.dumps(Own(READ)))
    assert (type(arrived).__name__, arrived.limit, state(arrived)) == ("Own", 7, state(Own(READ)))


def test_an_executor_without_a_dependency_names_it(monkeypatch: pytest.MonkeyPatch) -> None:
    pickled = cloudpickle.dumps(SENT[1])
    monkeypatch.delitem(sys.modules, "tidegate.spark.reading.batch_reader")
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(RuntimeError, match="has no package 'pyarrow'"):
        pickle.loads(pickled)


def test_an_executor_with_another_version_names_both(monkeypatch: pytest.MonkeyPatch) -> None:
    pickled = cloudpickle.dumps(SENT[1])
    driver = tidegate.__version__
    monkeypatch.setattr(tidegate, "__version__", "0.0.9")
    with pytest.raises(RuntimeError, match=f"has Tidegate 0.0.9, and the driver has {driver}"):
        pickle.loads(pickled)
