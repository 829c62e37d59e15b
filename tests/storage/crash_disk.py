"""The old name of the disk that lies, until nobody uses it any more."""

from tidegate.chaos.sim.disk import LyingDisk as CrashDisk
from tidegate.chaos.sim.disk import PowerCut

__all__ = ["CrashDisk", "PowerCut"]
