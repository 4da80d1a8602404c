"""The audit of a run: what its record proves of samples, steps and states."""
