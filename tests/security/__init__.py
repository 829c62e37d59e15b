"""Tests of the room security/."""
