"""The metadata quorum in simulation: the real core, journal, snapshots, membership and state machine on a virtual clock, network
and disk, driven by one seed.

    tidegate chaos sim quorum --seeds 1000 --voters 5

* `options`     what a seed draws: sizes, delays, which faults and how often
* `simulation`  time, the order of events, the run: faults, then healing, then the demand for progress
* `member`      one voter: its process (that is killed, paused, started) and its machine (whose power goes, whose disk fails)
* `machine`     the event loop's side of a member: applied state, proposals under way, snapshots
* `network`     connections that reset, delay, cut in one direction; or frames that are also lost, doubled and reordered
* `clients`     proposals, retries and duplicates of them, linearizable reads
* `faults`      what goes wrong, and coincidences that single faults hardly ever make (`directed`)
* `ledger`      what was promised, and the invariants, checked after every step
* `ablations`   the quorum with one safeguard taken away each: the seeds must notice
"""
