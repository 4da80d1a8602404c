"""Rows on disk in columns, mapped into memory: shards, a manifest, and how both are built."""
