"""How the replicas agree: sums of gradients over all replicas, and batch statistics over the global batch."""
