"""Transactions under faults: the product's coordinators and logs between a modelled network, elections and
producers.

    tidegate chaos sim transactions --seeds 1000 --first 0 --version 2

Each imports only those above it:

* `faults`        what a history may meet, and which safeguards it leaves out
* `environment`   the random numbers of the seed, the time, the network
* `partitions`    partitions that transactions write to: three real logs each, and a reader of committed data
* `coordinators`  three nodes with the product's coordinator, upon a modelled state partition: its replicas
  and elections
* `requests`      how a producer's requests reach the coordinator and the partitions' leaders
* `producers`     producers that follow the protocol
* `jobs`          drivers of a batch engine that run jobs, and readers' view of them
* `cuts`          takers of transaction-consistent cuts, and what each cut must hold
* `world`         the schedule: faults, then healing, then the promises that must hold
"""
