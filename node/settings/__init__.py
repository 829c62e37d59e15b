"""A node's settings.

| a setting is | in |
|---|---|
| defined, where a node's file may set it: name, type, default, bounds, meaning | `definitions.py` |
| defined, where it changes at run time (KIP-226) | `controller/state/broker_settings.py` |
| defined in both, where the file has the value until the metadata log has one | both, with one default |
| read from file, environment and command line, and checked | `configuration.py`, `node_listeners.py` |
| read by the node's parts, once and for all | `Configuration` |
| read by them as it holds now, and changed at run time | `RunTimeSettings` in `run_time_settings.py` |
| checked when a client changes it | `controller/planning/settings/node_settings.py` |
| shown to clients | `node/serving/described_settings.py` |
"""
