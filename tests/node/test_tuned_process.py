"""What a node sets for its process as a whole, in a process of its own: it cannot be taken back."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

PROGRAM = """
import ctypes, gc, resource, sys
set_options = []
class Libc:
    def mallopt(self, option, value):
        set_options.append((option, value))
        return 1
ctypes.CDLL = lambda name: Libc()
from tidegate.node.__main__ import tune_process
resource.setrlimit(resource.RLIMIT_NOFILE, (64, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
tune_process()
descriptors = resource.getrlimit(resource.RLIMIT_NOFILE)
print(sys.getswitchinterval(), gc.get_threshold(), sorted(set_options), descriptors[0] == descriptors[1])
"""


def test_a_node_sets_the_switch_interval_and_the_collector_and_malloc() -> None:
    """docs/hot-path.md H16 and H19."""
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout.strip() == "0.0005 (10000, 10, 10) [(-3, 33554432), (-1, 536870912)] True", done.stderr


START = """
import asyncio, gc, sys
from tidegate.node.node import Node, StartError
from tidegate.node.settings.configuration import load
settings = f'''
"node.id" = 1
"cluster.id" = "c"
"log.dirs" = ["{sys.argv[1]}"]
"controller.quorum.voters" = ["1@127.0.0.1:1:2"]
'''
frozen_before = gc.get_freeze_count()
node = Node(load(settings.encode(), environment={}, overrides=[], hostname="here"))
try:
    asyncio.run(node.run())
except StartError as error:
    print(frozen_before, gc.get_freeze_count() > len(gc.get_objects()), error)
"""


def test_the_collector_never_walks_what_a_start_has_loaded(tmp_path: Path) -> None:
    """docs/hot-path.md H19: the codecs of requests in their newest version belong to it."""
    used = tmp_path / "a-file"
    used.write_bytes(b"")
    done = subprocess.run(
        [sys.executable, "-c", START, str(used)], capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout.startswith("0 True "), done.stderr
