"""How readers and writers reach the executors: an executor whose Python cannot read with them says why.

PySpark sends them pickled, and a pickle names its classes by their modules: without these, the executor would
end with whatever `pickle` says.  So they travel as bytes, with a function that needs nothing but Python to
open them, and that checks first that executor and driver have the same version of Tidegate.
"""

from __future__ import annotations

from collections.abc import Callable

from pyspark import cloudpickle

from .. import __version__

Opener = Callable[[str, str, bytes], object]


def _opener() -> Opener:
    def opened(package: str, version: str, pickled: bytes) -> object:
        # Sent by value, as all functions in functions: of its module, an executor may have nothing.
        import importlib
        import pickle
        import platform
        import sys

        try:
            found = importlib.import_module(package).__version__
            if found == version:
                cls, state = pickle.loads(pickled)
                copy = cls.__new__(cls)
                copy.__dict__.update(state)
                return copy
            problem = f"Tidegate {found}, and the driver has {version}"
        except ModuleNotFoundError as missing:
            problem = f"no package {missing.name!r}"
        raise RuntimeError(
            f"the Python of this executor ({sys.executable} on {platform.node()}) has {problem}: give the "
            "executors the environment of the driver, with --archives or an image (docs/spark.md, Executors)"
        )

    return opened


_opened = _opener()


class SentToExecutors:
    """A base of what PySpark pickles to the executors."""

    def __reduce__(self) -> tuple[Opener, tuple[str, str, bytes]]:
        package = __name__.partition(".")[0]
        # by which also a class of a user's program, made from one of these, travels by value
        by_value: Callable[[object], bytes] = cloudpickle.dumps
        return _opened, (package, __version__, by_value((type(self), self.__dict__)))
