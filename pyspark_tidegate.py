"""Found by Spark through its name: makes `spark.read.format("tidegate")` known without any registration."""

from __future__ import annotations

from tidegate.spark.source import DefaultSource

__all__ = ["DefaultSource"]
