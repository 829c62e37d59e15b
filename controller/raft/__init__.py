"""The metadata quorum: Raft as a pure step, over PySyncObj's tick.  docs/raft.md in short.

From the rules outwards; each module imports only those above it:

* `contract`        settings, status, and the two ports: outbox and state machine
* `messages`        a fixed binary schema
* `log`, `state`    what a voter knows, and what a step asks for: persist, send, apply
* `election`, `follower`, `replication`, `membership`    the parts of Raft, each pure
* `library`         PySyncObj: the one file that touches it
* `voter`           `step(event, now) -> Ready`
* `journal`, `durable_note`, `snapshot_store`    the disk
* `core`            the shell: carries out what a step asks for
* `transport`, `thread`    connections, and the one thread in which a voter runs

`RaftFatal` stops the process: a node that cannot keep a promise any more must send nothing (fail-stop).
"""
