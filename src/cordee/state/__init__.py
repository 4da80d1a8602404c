"""What survives a run: named state, checkpoints, model files."""
