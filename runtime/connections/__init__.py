"""What one connection is made of: frames and their memory, files sent on it, TLS, the text of listeners, the
names of hosts, and the limit on clients that have not authenticated.

The Network port (`runtime/network.py`) and the HTTP pages (`runtime/http.py`) listen and connect with these
parts; no part imports either of them.  Beside them stand `blocking_frames`, which connects by itself, for
threads, and `listeners` and `host_names`, which settings are read with, too.
"""
