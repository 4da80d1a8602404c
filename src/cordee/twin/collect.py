"""What a run wrote on other hosts than the first: brought to where its user looks for it, before they are gone.

The worker that speaks for all writes on its own host. Usually that is the first one; once no worker of it is left, it
is another, whose folder ends with the twin.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterable
from pathlib import Path

_HIDDEN = ".brought"


def collect_files(folders: Iterable[Path], out: Path) -> list[str]:
    """Move what is not there, or older there, into `out`; the names of what came."""
    moved = []
    for folder in folders:
        for source in (*sorted(folder.glob("checkpoints/step-*")), *sorted(folder.glob("*.safetensors"))):
            target = out / source.relative_to(folder)
            if target.exists() and target.stat().st_mtime_ns >= source.stat().st_mtime_ns:
                continue
            target.parent.mkdir(parents=True, exist_ok=True)
            hidden = target.with_name(f"{_HIDDEN}-{target.name}")
            shutil.move(source, hidden)  # into the same folder first: there it is put in place at once, or not at all
            if target.is_dir():
                shutil.rmtree(target)
            hidden.replace(target)
            moved.append(target.name)
    return moved
