"""What happens to a batch late: on its device, after it was copied there, each time that it is taken."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import torch

from cordee.core.errors import DataError
from cordee.feed.batch import Batch
from cordee.feed.permute import Ids
from cordee.feed.source import Fields, Source, Traits, digest_of, map_tensors


@dataclass(frozen=True)
class Late:
    """A function of the user's from a batch to its new fields."""

    function: Callable[[Batch], Fields]
    augments: bool = False
    """For training alone."""

    @property
    def name(self) -> str:
        """What the function is called."""
        return str(getattr(self.function, "__name__", type(self.function).__name__))

    @property
    def shown(self) -> str:
        """How it was given."""
        return f"{'augment' if self.augments else 'transform'}({self.name})"


class Transformed:
    """A source whose batches are changed late. What it gathers itself is as the other source has it."""

    def __init__(self, source: Source, late: Late) -> None:
        """Change batches of `source`, after what changes them already."""
        if not callable(late.function):
            called = "augment" if late.augments else "transform"
            raise DataError(
                f"{called}({late.function!r}): a function was expected, which takes a batch, gives its fields"
            )
        self.source, self.late = source, late

    @property
    def traits(self) -> Traits:
        """Those of the other source, and what is to be done late."""
        traits = self.source.traits
        return replace(traits, late=(*traits.late, self.late))

    @property
    def fingerprint(self) -> str:
        """Of the other source, and the name of the function."""
        return digest_of([self.source.fingerprint.encode(), f"{self.late.name} {self.late.augments}".encode()])

    def __len__(self) -> int:
        """As many samples."""
        return len(self.source)

    def buffers(self, count: int, *, pin: bool = False) -> Fields | None:
        """Memory of the other source."""
        return self.source.buffers(count, pin=pin)

    def gather(self, ids: Ids, out: Fields | None = None) -> Fields:
        """As the other source has them."""
        return self.source.gather(ids, out)


def late_of(source: Source, *, training: bool) -> tuple[Late, ...]:
    """What is to be done to the batches of a source, in training or in evaluation."""
    return tuple(one for one in source.traits.late if training or not one.augments)


def change(batch: Batch, late: tuple[Late, ...]) -> Batch:
    """The batch, with its new fields."""
    with torch.no_grad():
        for one in late:
            fields = one.function(batch)
            if fields is None or isinstance(fields, Batch):
                gave = "None. Is its return missing?" if fields is None else "a batch: give its fields"
                raise DataError(f"{one.shown}: the function gave {gave}")
            batch.fields = fields
    return batch


def read(source: Source, ids: Ids, device: str | torch.device = "cpu", *, training: bool = True) -> Batch:
    """These samples as a batch of the first epoch, as a model gets them."""
    ids = np.asarray(ids, dtype=np.int64)
    batch = Batch(ids, map_tensors(lambda tensor: tensor.to(device), source.gather(ids)))
    return change(batch, late_of(source, training=training))
