"""Keeping the workers of a run alive: start them, watch them, end them."""
