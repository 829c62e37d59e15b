"""The metadata quorum in simulation: the real core, journal, snapshots, membership and state machine on a
virtual clock, network and disk, driven by one seed.

    tidegate chaos sim quorum --seeds 1000 --voters 5

Each imports only those above it:

* `options`     what a seed draws: sizes, delays, which faults and how often
* `schedule`    virtual time, the order of events, the random numbers of the seed
* `ledger` the promises made so far (`promises`: by each disk), and the invariants, checked after every step
* `process`     the process of one voter: its lives, its pauses, the rounds of its Raft thread
* `machine`     the event loop's side of it: applied state, pending proposals, snapshots
* `network`     connections that reset, delay, cut in one direction; or frames that are also lost, doubled and
  reordered
* `member`      one voter: its process, which is killed and started, and its host, whose power goes, whose
  disk fails
* `cluster`     all members with their network, their time and the ledger: what clients use and faults break
* `clients`     proposals, retries and duplicates of them (`commands`), linearizable reads
* `faults` single faults, and coincidences that they hardly ever make (`directed`)
* `simulation`  the run: faults, then healing, then the demand for progress
* `ablations`   the quorum with one safeguard taken away each: the seeds must notice
"""
