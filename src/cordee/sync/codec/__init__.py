"""How gradients are made smaller for the wire, one file per way."""
