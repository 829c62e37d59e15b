"""Runs a node that dies with the process that started it: `python -m tidegate.processes.child_node --config
FILE`.

The starter holds the write end of this process's standard input.  When the starter ends, in any manner, the
kernel closes that end, the read below returns, and the node kills itself.  (PR_SET_PDEATHSIG would do it only
for the starting *thread*, and would need code between fork and exec in a process that has gRPC threads.)
"""

from __future__ import annotations

import io
import os
import runpy
import signal
import sys
import threading


def _die_with_the_starter() -> None:
    # unbuffered: a buffered reader's lock would hang the interpreter's own end
    leash = io.FileIO(0, closefd=False)
    while leash.read(1):
        pass
    os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    # kio registers strategies for its types where it finds hypothesis: a sixth of the CPU time of a start
    sys.modules.setdefault("hypothesis", None)  # type: ignore[arg-type]
    threading.Thread(target=_die_with_the_starter, name="leash", daemon=True).start()
    runpy.run_module("tidegate.node", run_name="__main__", alter_sys=True)
