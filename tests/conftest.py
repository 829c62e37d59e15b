"""Imports tidegate before anything else can import grpc: the order that `tidegate/__init__.py` asks of every program."""

import tidegate

assert tidegate.__version__
