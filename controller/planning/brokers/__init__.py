"""Registration, controlled shutdown, sessions, and which brokers have reached which."""
