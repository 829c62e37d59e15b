"""What tests need of the machine, and a machine may lack: the only place that skips a test.

Every run ends with the tests that were skipped, and why (`-ra`).  Where all of it must be there, as on the
hosted runner, TIDEGATE_TESTS_SKIP=nothing makes each of these a failure.
"""

from __future__ import annotations

import os
from enum import Enum
from typing import NoReturn

import pytest

SKIP = "TIDEGATE_TESTS_SKIP"


class Need(Enum):
    """What is needed, and how to get it: the rows of the table in CONTRIBUTING.md."""

    C_COMPILER = "`apt-get install gcc libc6-dev`, with Python's own headers (python3-dev)"
    CODEC_LIBRARIES = "`apt-get install libzstd1 liblz4-1`"
    FOREIGN_CLIENTS = "`make foreign-clients`, which needs Maven, npm, Go and their registries"
    JAVAC = "a JDK: javac"
    KCAT = "`apt-get install kcat`"
    KUBECTL = "kubectl, which renders a kustomization as a cluster gets it"
    SMALL_DISKS = "root, to mount file systems of some MiB"
    KERNEL_FLUSH = "a kernel and a container that permit asynchronous flushes"


def lacks(need: Need, why: str) -> NoReturn:
    """Skips the test, or fails it where nothing may be skipped."""
    sentence = f"{why}; this test needs {need.value}"
    if os.environ.get(SKIP) == "nothing":
        pytest.fail(f"{sentence}, and {SKIP}=nothing", pytrace=False)
    pytest.skip(sentence)
