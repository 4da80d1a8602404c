"""Bytes to batches: sources of samples, their order, who computes which, and the loader that gathers them."""
