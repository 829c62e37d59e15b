"""The Spark source and sink `tidegate`, and a Spark session for one machine.

    from tidegate.spark import local_session
    spark = local_session("backfill")
    source = spark.read.format("tidegate").option("bootstrap", "localhost:9192")
    flights = source.option("subscribe", "flights").load()

    from tidegate.spark import count_committed
    count_committed("localhost:9192", "flights")        # from indexes, without Spark and without reading data

    from tidegate.spark import cut
    now = cut("localhost:9192", ["flights", "gates"])   # a transaction is wholly inside or wholly outside
    spark.read.format("tidegate").option("bootstrap", "localhost:9192").option("cut", now.to_json()).load()

Names are loaded when they are used: Spark imports this package in each of its Python processes.  `python -m
tidegate.spark.java` works before pyspark is installed.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from ..client.consuming.cut import Cut, CutError
    from .connecting.errors import ReadError
    from .decoding.decode import decoder_name
    from .options import OptionError
    from .reading.counting import count_committed
    from .reading.cuts import cut
    from .session import local_session
    from .source import register

_MODULE_OF: Final = {
    "Cut": "..client.consuming.cut",
    "CutError": "..client.consuming.cut",
    "OptionError": ".options",
    "ReadError": ".connecting.errors",
    "count_committed": ".reading.counting",
    "cut": ".reading.cuts",
    "decoder_name": ".decoding.decode",
    "local_session": ".session",
    "register": ".source",
}

__all__ = [
    "Cut",
    "CutError",
    "OptionError",
    "ReadError",
    "count_committed",
    "cut",
    "decoder_name",
    "local_session",
    "register",
]


def __getattr__(name: str) -> Any:
    module = _MODULE_OF.get(name)
    if module is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(module, __name__), name)
