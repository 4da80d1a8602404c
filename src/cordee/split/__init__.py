"""How one replica of a model lies over workers: whole, or in slices of its weight matrices."""
