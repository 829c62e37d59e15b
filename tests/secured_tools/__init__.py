"""Clients held to their quotas for more than a minute: `make quotas`."""
