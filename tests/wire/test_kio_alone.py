"""What a start of a node imports."""

from __future__ import annotations

import subprocess
import sys

import pytest


@pytest.mark.parametrize(
    ("before", "after"),
    [("", "False False"), ("import hypothesis;", "True True"), ("import kio.serial;", "True True")],
)
def test_kio_brings_no_hypothesis_where_nobody_uses_it(before: str, after: str) -> None:
    """And what the program imports by itself it has, before and afterwards."""
    program = (
        f"import sys; {before} import tidegate.wire.codec, tidegate.wire.schema;"
        "found = 'hypothesis' in sys.modules; import kio.static.primitive as kio;"
        "print(found, kio.Phantom.__init_subclass__.__globals__['hypothesis'] is not None);"
        "import hypothesis.strategies"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60
    )
    assert done.stdout.strip() == after
