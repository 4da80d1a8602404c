"""Words and values without torch: plan, world, events, errors."""
