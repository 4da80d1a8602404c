"""The team: who is in the group of this generation, how a loss is noticed, and how the survivors go on."""
