"""What a node sets for its process as a whole, in a process of its own: it cannot be taken back."""

from __future__ import annotations

import subprocess
import sys

PROGRAM = """
import ctypes, gc, sys
set_options = []
class Libc:
    def mallopt(self, option, value):
        set_options.append((option, value))
        return 1
ctypes.CDLL = lambda name: Libc()
from tidegate.node.__main__ import tune_process
tune_process()
print(sys.getswitchinterval(), gc.get_threshold(), sorted(set_options))
"""


def test_a_node_sets_the_switch_interval_and_the_collector_and_malloc() -> None:
    """docs/hot-path.md H16 and H19."""
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout.strip() == "0.0005 (10000, 10, 10) [(-3, 33554432), (-1, 536870912)]", done.stderr
