"""How a driver, a task or a command reaches the nodes: addresses, channels, leaders, retries."""
