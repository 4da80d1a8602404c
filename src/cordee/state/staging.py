"""Memory between training and disk: a checkpoint is copied there, while the next step computes, and written from there.

Without it, the next update would wait until the disk has taken everything. It is kept from one checkpoint to the next:
fresh memory takes twice as long to fill. Where memory is short, none is taken, and the update waits.
"""

from __future__ import annotations

from dataclasses import replace

import torch

from cordee.core.machine import available_memory
from cordee.state.layout import tensor_bytes
from cordee.state.naming import Snapshot

TIMES = 3
"""Of what a copy needs, so much must be free."""


class Staging:
    """Copies of the tensors of the last checkpoint."""

    def __init__(self) -> None:
        """None yet."""
        self._tensors: dict[str, torch.Tensor] = {}

    def copied(self, snapshot: Snapshot) -> Snapshot | None:
        """The snapshot with copies of its tensors, good until the next call; None: memory is short."""
        kept = self._tensors
        self._tensors = {}
        missing = []
        for name, tensor in snapshot.tensors.items():
            known = kept.get(name)
            if known is not None and (known.shape, known.dtype) == (tensor.shape, tensor.dtype):
                self._tensors[name] = known
            else:
                missing.append(name)
        del kept  # what does not fit any more is free before more is taken
        if TIMES * tensor_bytes(snapshot.tensors[name] for name in missing) > available_memory():
            self._tensors = {}
            return None
        for name in missing:
            self._tensors[name] = torch.empty(snapshot.tensors[name].shape, dtype=snapshot.tensors[name].dtype)
        for name, tensor in snapshot.tensors.items():
            self._tensors[name].copy_(tensor)
        return replace(snapshot, tensors={name: self._tensors[name] for name in snapshot.tensors})
