"""What is checked before a run, watched during it and explained after it."""
