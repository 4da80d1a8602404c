"""What carries tensors between the ranks of one generation: gloo, NCCL, shared memory, and the two over hosts."""
