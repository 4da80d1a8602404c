"""The coordinator of a run: what it knows, what follows from that, who acts on it, and the wire to the workers."""
