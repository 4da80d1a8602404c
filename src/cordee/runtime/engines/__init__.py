"""Engines: what starts and ends the processes of a run."""
