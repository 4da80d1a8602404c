"""Which side continues where each has half of the hosts: the first that claims it in the run's folder.

Both sides know how many claims there were before, and only one can make the file of the next one. A claim is for good
and has no clock in it: neither side has to hurry, and a side that was stopped for a while finds that it is too late.
"""

from __future__ import annotations

import contextlib
import os
import secrets
from pathlib import Path

import msgspec


class _Run(msgspec.Struct):
    """What is needed here of `run.json`."""

    run: str = ""


def is_shared(folder: Path, run: str) -> bool:
    """Whether the folder is the one into which the first coordinator's launcher wrote this run."""
    try:
        return bool(run) and msgspec.json.decode((folder / "run.json").read_bytes(), type=_Run).run == run
    except (OSError, ValueError, RecursionError):
        return False


def claim(folder: Path, run: str, number: int, home: int) -> bool:
    """Claim that this side, whose coordinator is on host `home`, continues; False if the other side has done so.

    Once more it is True for the side that has the claim: its coordinator may have been started again since.
    """
    path, mine = folder / f"run.claim-{run}-{number}", f"{home}\n"
    making = path.with_name(f".{path.name}-{secrets.token_hex(8)}")
    try:
        making.write_text(mine)
        with contextlib.suppress(FileExistsError):
            os.link(making, path)  # at once, or not at all
        return path.read_text() == mine
    except OSError:
        return False
    finally:
        with contextlib.suppress(OSError):
            making.unlink()
