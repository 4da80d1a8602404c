"""The samples of all committed steps, and what became of each step."""

from __future__ import annotations

from dataclasses import dataclass

from cordee.feed.order import chain


@dataclass(frozen=True)
class Committed:
    """A step that happened everywhere."""

    number: int
    """Steps before it, over all epochs."""
    epoch: int
    step: int
    loss: float
    samples: int
    stop: bool
    """Some replica wished to stop after this step, or was asked to."""
    asked: bool
    """It was the launcher who asked to stop (Ctrl-C)."""
    save: bool
    """Some replica wished a checkpoint after this step."""
    grad_norm: float | None = None
    """The norm of the global gradient, before it was clipped; None on a GPU, where it comes with the record only."""
    lr: float | None = None
    """The learning rate of the optimizer's first group; None if it has none."""

    @property
    def steps(self) -> int:
        """Steps committed so far, over all epochs, this one included."""
        return self.number + 1


@dataclass
class Ledger:
    """The samples of all committed steps, as delivered: every replica reaches the same ledger."""

    order_sha256: str = ""
    samples: int = 0
    lost: int = 0
    repeated: int = 0
    unmerged: int = 0
    """Of those lost, in checkpoints of former versions: with a replica that had not merged them yet."""

    def enter(self, place: tuple[int, int, int], count: int, digest: int, expected: tuple[int, int]) -> None:
        """A step was committed in which `count` samples with this digest reached the replicas.

        `place` is its epoch, its step and the steps of an epoch; `expected` are the count and digest by the order.
        """
        epoch, step, steps = place
        if (count, digest) != expected:
            missing = expected[0] - count
            # Of two equal counts with different digests at least one sample is missing and one is there twice.
            self.lost += max(missing, 0) if missing else 1
            self.repeated += max(-missing, 0) if missing else 1
        self.samples += count
        self.order_sha256 = chain(self.order_sha256, epoch * steps + step, digest, count)

    def told(self) -> str:
        """What is to be said if samples were lost or repeated."""
        return (
            f"{self.lost} samples were lost and {self.repeated} repeated: this is not what one process would have "
            "trained. A defect of Cordée, please report it"
        )
