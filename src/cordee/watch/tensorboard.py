"""A run for TensorBoard: its numbers as event files that TensorBoard reads."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from cordee.core.errors import StorageError, UsageError
from cordee.core.eventlog import read_events
from cordee.core.events import EpochEvent, Event, JobEvent, StepEvent
from cordee.core.times import PARTS, Block, Breakdown

SUFFIX = ".cordee"
"""Our files end with it: writing again replaces them, and no others."""


def write_tensorboard(folder: str | os.PathLike[str], target: str | os.PathLike[str]) -> None:
    """Write the scalars of the run in `folder` into the folder `target`, as far as the run has come."""
    place = Path(target)
    try:
        place.mkdir(parents=True, exist_ok=True)
        for old in place.glob(f"events.out.tfevents.*{SUFFIX}"):
            old.unlink()
        scalars = _Scalars(place)
    except OSError as error:
        raise StorageError(f"cannot write into {place.absolute()}: {error.strerror}") from error
    for event in read_events(Path(folder) / "events.jsonl"):
        scalars.take(event)
    scalars.close()


class _Scalars:
    """Turns the events of a run into scalars."""

    def __init__(self, target: Path) -> None:
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError as error:
            raise UsageError(
                f"--tensorboard needs the package tensorboard, which is not there ({error}): "
                "pip install 'cordee[tensorboard]'"
            ) from None
        self._open = partial(SummaryWriter, target, filename_suffix=SUFFIX)
        self._writer: Any = self._open()
        self._breakdown = Breakdown(self._on_block)

    def take(self, event: Event) -> None:
        """One event of the run."""
        self._breakdown.take(event)
        if take := getattr(self, f"_on_{event.kind}", None):
            take(event)

    def close(self) -> None:
        """Write what is left."""
        self._breakdown.finish()
        self._writer.close()

    def _write(self, step: int, at: float, values: Iterable[tuple[str, float | None]]) -> None:
        for tag, value in values:
            self._writer.add_scalar(tag, float("nan") if value is None else value, step, at)

    def _on_job(self, event: JobEvent) -> None:
        if event.steps:  # what lies beyond is done again: TensorBoard then forgets the first time
            self._writer.close()
            self._writer = self._open(purge_step=event.steps + 1)

    def _on_step(self, event: StepEvent) -> None:
        values: list[tuple[str, float | None]] = [("train/loss", event.loss), ("train/step_ms", event.ms)]
        if event.ms:
            values.append(("train/samples_per_s", 1e3 * event.samples / event.ms))
        values += [
            (f"train/{name}", value) for name in ("lr", "grad_norm") if (value := getattr(event, name)) is not None
        ]
        self._write(event.step, event.moment, values)

    def _on_epoch(self, event: EpochEvent) -> None:
        values = [(f"validation/{name}", value) for name, value in event.validation.items()]
        self._write(event.step, event.time, values)

    def _on_block(self, first: int, blocks: Mapping[int, Block]) -> None:
        """The parts of each step, as means over the workers."""
        for place, at in enumerate(next(iter(blocks.values())).arrived):
            columns = {part: [getattr(block, part)[place] for block in blocks.values()] for part in PARTS}
            means = [(f"time/{part}_ms", sum(values) / len(values)) for part, values in columns.items()]
            self._write(first + place + 1, at, means)
