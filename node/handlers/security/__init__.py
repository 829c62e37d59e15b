"""Requests of authentication."""
