"""The node process: `python -m tidegate.node --config FILE` or `tidegate-node`.

Exit codes: 0 after a clean stop, 1 after one that could not close the data cleanly (a full disk), 2 for a
configuration that cannot be used, 3 when the node could not start, 70 when it stopped itself because going on
could have given a wrong answer.
"""

from __future__ import annotations

import argparse
import asyncio
import ctypes
import gc
import os
import resource
import socket
import sys
from pathlib import Path

from ..runtime import logs
from ..runtime.disk import RealDisk
from .node import Node, StartError
from .settings.configuration import Configuration, ConfigurationError, load
from .settings.definitions import SETTINGS

# docs/hot-path.md H19: by default glibc maps and unmaps every buffer above 128 KiB: two thirds of the
# throughput of 1 MiB messages.
M_TRIM_THRESHOLD = -1
M_MMAP_THRESHOLD = -3
# So many objects more, and the youngest, middle and oldest of them are searched for unreachable cycles.  By
# Python's default (700) a node with 10,000 partitions stops for 0.2 s and more whenever many of them change
# their roles.
GARBAGE_THRESHOLDS = (10_000, 10, 10)
SWITCH_INTERVAL_S = 0.0005  # rule H16: a busy thread must not hold up the loop for Python's default 5 ms


def main() -> None:
    """Parses the arguments, runs the node until it gets a stop signal, and exits."""
    parser = argparse.ArgumentParser(
        prog="tidegate-node", description="One Tidegate node: broker, controller or both."
    )
    parser.add_argument("--config", type=Path, help="TOML file with the node's settings")
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="one setting; wins over file and environment",
    )
    parser.add_argument(
        "--settings", action="store_true", help="list all settings with their defaults, and exit"
    )
    parser.add_argument(
        "--check", action="store_true", help="only say whether the configuration can be used, and exit"
    )
    arguments = parser.parse_args()
    if arguments.settings:
        print_settings()
        return
    try:
        file = RealDisk().read(arguments.config) if arguments.config else None
        configuration = load(
            file, environment=os.environ, overrides=arguments.set, hostname=socket.gethostname()
        )
    except (ConfigurationError, OSError) as error:
        sys.exit(_report(2, f"cannot use the configuration: {error}"))
    if arguments.check:
        return
    logs.configure(
        level=configuration.text("log.level"), json_lines=configuration.text("log.format") == "json"
    )
    tune_process()
    sys.exit(asyncio.run(_run(configuration)))


async def _run(configuration: Configuration) -> int:
    node = Node(configuration)
    try:
        return await node.run()
    except StartError as error:
        return _report(3, str(error))


def _report(code: int, message: str) -> int:
    print(f"tidegate-node: {message}", file=sys.stderr)
    return code


def tune_process() -> None:
    """What was measured as worth it."""
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    gc.set_threshold(*GARBAGE_THRESHOLDS)
    descriptors_max = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (descriptors_max, descriptors_max))  # as the JVM does
    try:
        libc = ctypes.CDLL("libc.so.6")
        libc.mallopt(M_MMAP_THRESHOLD, 32 << 20)
        libc.mallopt(M_TRIM_THRESHOLD, 512 << 20)
    except (OSError, AttributeError):
        logs.get(__name__).info("malloc_not_tuned", reason="this C library has no mallopt")


def print_settings() -> None:
    """One line a setting, with its default and meaning."""
    for key, setting in SETTINGS.items():
        print(f"{key:62} {setting.shown_default:24} {setting.doc}")


if __name__ == "__main__":
    main()
