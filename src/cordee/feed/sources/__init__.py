"""Readers of raw files: one module per form of data."""
