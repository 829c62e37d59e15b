"""What a request, a heartbeat or a tick leads to: plans, without clock or I/O."""
