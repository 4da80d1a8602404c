"""Where the `cordee` command begins: signals are heeded before anything that takes time is imported."""

from __future__ import annotations

from cordee.core.interrupts import end_at_once


def main() -> None:
    """The `cordee` command."""
    end_at_once()
    from cordee.cli.main import main

    main()
