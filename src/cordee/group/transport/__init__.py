"""What carries tensors between the ranks of one generation: gloo, NCCL, shared memory; one file each."""
