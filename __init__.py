"""Tidegate: a distributed, transactional log broker that real Kafka clients talk to unmodified."""

__version__ = "0.1.0"
