"""The metadata quorum: PySyncObj's Raft, hardened.  docs/raft.md in short.

* `journal`         entries, term and vote: checksummed, fsynced, refusing to start after a loss (stock: an
  mmap, never synced)
* `snapshot_store`  a durable snapshot before the journal is trimmed; chunked transfer (stock: a forked
  pickle)
* `membership`      which journals have a vote: a journal has it, not a node, so a lost disk forgets no vote
  (stock: nothing)
* `messages`        a fixed binary schema (stock: pickle, that is, remote code execution)
* `transport`       bounded frames over one connection a pair, with an identity hello (stock: one socket error
  closes the port)
* `core`            the subclass of `SyncObj`: every override of a private method lives there
* `matching`        how a journal is made to agree with the leader's, and `library_ports` what PySyncObj
  expects around itself
* `thread`          one thread that runs the core and sleeps while nothing happens

`RaftFatal` stops the process: a node that cannot keep a promise any more must send nothing (fail-stop).
"""
