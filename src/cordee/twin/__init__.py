"""A cluster emulated on one machine: hosts with their own link speed and share of the processor."""
