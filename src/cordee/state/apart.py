"""A checkpoint whose parts lie apart: each owner's stands by itself, in the memory of its host and of another one.

No owner waits for another. A part is there when its description is, which is written after its tensors. What all owners
have described makes a checkpoint, wherever the parts are brought together. Nothing here loads torch.
"""

from __future__ import annotations

import contextlib
import json
import re
import shutil
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cordee.core.damage import DAMAGE, write_whole
from cordee.core.errors import CheckpointError
from cordee.state.index import INDEX, check_sizes, folder_name, join, list_checkpoints, seal

KEPT = 3
"""Parts of an owner that are kept. Owners are never two copies apart, as each begins one when its last one stands."""
ALONE = "whole"
"""In the place of a token, where one worker owns all."""
TOKEN = re.compile(r"[0-9a-z-]{1,64}")
_NAME = re.compile(r"parts-(\d{8,})\.([0-9a-z-]{1,64})")


@dataclass(frozen=True)
class Part:
    """One owner's part of the state after a step."""

    step: int
    token: str
    """The same for all owners of a replica, and for no others."""
    number: int
    """The owner's."""

    def place(self, folder: Path) -> Path:
        """Where it lies with those of other owners."""
        return folder / f"parts-{self.step:08d}.{self.token or ALONE}"

    def description(self, folder: Path) -> Path:
        """The file that is written last."""
        return self.place(folder) / f"part-{self.number:05d}.json"

    def tensors(self, folder: Path) -> Path:
        """The file with its tensors."""
        return self.place(folder) / f"tensors-{self.number:05d}.safetensors"

    def is_there(self, folder: Path) -> bool:
        """Whether all of it is."""
        return self.description(folder).exists()

    def describe(self, folder: Path, content: dict[str, Any]) -> None:
        """It stands from now on; what it takes the place of goes."""
        write_whole(self.description(folder), json.dumps(content))
        own = [one for one in parts_in(folder) if (one.number, one.token) == (self.number, self.token)]
        for old in own[:-KEPT]:
            old.discard(folder)

    def discard(self, folder: Path) -> None:
        """Remove it; first what says that it is there."""
        self.description(folder).unlink(missing_ok=True)
        self.tensors(folder).unlink(missing_ok=True)
        with contextlib.suppress(OSError):  # those of other owners are there
            self.place(folder).rmdir()


def parts_in(folder: Path) -> list[Part]:
    """All parts that are there, by step and owner."""
    found = []
    for place in folder.glob("parts-*"):
        if match := _NAME.fullmatch(place.name):
            token = "" if match.group(2) == ALONE else match.group(2)
            found += [Part(int(match.group(1)), token, int(one.stem[5:])) for one in place.glob("part-*.json")]
    return sorted(found, key=lambda part: (part.step, part.number))


def assemble(folder: Path) -> int | None:
    """Make a checkpoint of the newest step of which all parts are there; the newest in the folder, None if none is.

    What is older, or was not whole, is removed: no worker writes there any more.
    """
    made = list_checkpoints(folder)
    least = made[-1][0] if made else -1
    for step, token in sorted({(one.step, one.token) for one in parts_in(folder)}, reverse=True):
        if step > least and _seal(folder, Part(step, token, 0)):
            made = [*made, (step, folder / folder_name(step))]
            break
    for path in (*folder.glob("parts-*"), *(path for _, path in made[:-1])):
        shutil.rmtree(path, ignore_errors=True)
    return made[-1][0] if made else None


def _seal(folder: Path, first: Part) -> bool:
    """Put the parts of all owners together; False if one is missing or damaged."""
    place = first.place(folder)
    try:
        own, *others = _described(place)
        body = join(own, others, step=first.step, metrics=own["metrics"])
        check_sizes(place, body)
    except (OSError, CheckpointError, *DAMAGE):
        return False
    (place / INDEX).write_text(json.dumps({"sha256": seal(body), **body}), encoding="utf-8")
    place.rename(folder / folder_name(first.step))
    return True


def _described(place: Path) -> Iterable[dict[str, Any]]:
    """What owners say of their parts, the first one's first; fails if one is not there."""
    count, number = 1, 0
    while number < count:
        described = json.loads((place / f"part-{number:05d}.json").read_text(encoding="utf-8"))
        count, number = int(described["count"]), number + 1
        yield described
