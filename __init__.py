"""Tidegate: a distributed, transactional log broker that real Kafka clients talk to unmodified."""

import os

# Said before the first import of grpc, which reads it once: its handlers around fork() abort the child when
# other threads use gRPC at that moment, and PySpark starts its Java from such a child.  Nothing here uses
# gRPC on both sides of a fork.
os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")

__version__ = "0.1.0"
