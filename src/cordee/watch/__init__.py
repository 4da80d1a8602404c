"""Looking at a run: progress, report, traces."""
