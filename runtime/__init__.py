"""The ground floor: the three ports (Clock, Disk, Network), their real implementations, fault points and
structured logs.

Only this package touches time, randomness, the operating system's files and sockets.  Production passes the
real ports in, the simulator passes its own; `tests/architecture/test_ports.py` holds that nothing else
reaches around them.
"""
