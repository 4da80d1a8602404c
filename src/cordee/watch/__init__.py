"""Looking at a run: progress while it goes on."""
