"""How far a training has come, as a value: what a checkpoint keeps beside the tensors."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field, fields
from typing import Any

from cordee.core.errors import CheckpointError
from cordee.state.naming import Snapshot
from cordee.train.agreement import differing


@dataclass(frozen=True)
class Progress:
    """All that a start needs to continue, or a worker to enter in mid-run, beside model, optimizer and schedule."""

    epoch: int
    step: int
    """Of the next step, within its epoch."""
    resolved: dict[str, Any]
    data: str
    """The fingerprint of the training data."""
    order: dict[str, Any]
    asked: dict[str, Any]
    """What batch and learning rate were resolved from."""
    ledger: dict[str, Any]
    patience: dict[str, Any]
    validation: dict[str, float]
    last: dict[str, Any] | None
    """The step that was committed last."""
    best: dict[str, Any] | None = None
    precision: dict[str, float] = field(default_factory=dict)
    settings: Any = None
    """The optimizer's, when the run began; None in checkpoints that did not keep them."""
    living: list[str] | None = None
    """Buffers that live (see `Living`), for a worker that enters; a checkpoint keeps none: they are found again."""
    shares: list[Any] | None = None
    """Those that the workers agreed on, for a worker that enters; a resumed run begins with those of its plan."""

    @classmethod
    def of(cls, snapshot: Snapshot) -> Progress:
        """What a snapshot was given by `kept_in`."""
        extra = snapshot.extra
        return cls(**{one.name: extra[one.name] for one in fields(cls) if one.name in extra})

    def kept_in(self, snapshot: Snapshot) -> Snapshot:
        """The snapshot with this beside its tensors."""
        return snapshot.with_extra(**asdict(self))

    def check(self, *, data: str, asked: dict[str, Any], order: dict[str, Any]) -> None:
        """Refuse to continue with another data set, batch or order than before."""
        for what, saved, now in (("data", self.data, data), ("batch", self.asked, asked), ("order", self.order, order)):
            if saved == now:
                continue
            told = f"saved {saved}, now {now}"
            if isinstance(saved, dict) and isinstance(now, dict):
                names = [name for name in {**saved, **now} if saved.get(name) != now.get(name)]
                told = ", ".join(f"{name} {saved.get(name)} → {now.get(name)}" for name in names)
            raise CheckpointError(
                f"the checkpoint belongs to another {what}: {told}. Resume with the same job and data, "
                "or start a new run in another folder (start_from= takes only the weights)"
            )

    def changed_settings(self, now: Any) -> str:
        """What to say if the job asks for other settings of the optimizer than the run began with; else empty."""
        if self.settings is None or self.settings == now:
            return ""
        before, asked = differing(self.settings, now)
        return (
            f"the job asks for {asked}, but the run goes on with {before}, which it began with: an optimizer is "
            "resumed as it was saved. start_from= takes only the weights"
        )
