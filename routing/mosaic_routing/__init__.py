"""Where work runs: GPU classes and the queues that serve them."""
