"""Where a partition's replicas are, which of them leads, and which are in sync."""
