"""A whole cluster in virtual time: the product's brokers and controllers between a simulated loop, network,
disks and quorum."""
