"""Stages whose state is sharded: gathered and added up between the actions of a table, not when a layer is called.

Workers with the same stages hold their state together, and each executes a table of its own share. They have to begin
their collectives in one order, so these follow from the table alone, and not from what the user's code calls: a stage
may be passed without being computed, to find out shapes. FSDP2 keeps the parts and moves them; its hooks are taken off.

`optimizer`: all is gathered before the table, and gradients are added up behind it. `gradients`: they are added up
after each backward action. `params`: the blocks of a stage are gathered for each action on it, and let go behind it.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from cordee.group.sliced import is_sliced
from cordee.group.team import Team
from cordee.split.schedules.table import Action
from cordee.split.shard import parameters_of, units_of
from cordee.split.staged import Staged


class GatheredStages:
    """The stages of one worker, each of whose parameters lies over several workers."""

    def __init__(self, team: Team, word: str, staged: Staged) -> None:
        """The model of `staged` is sharded already; `word` is the plan's."""
        self._team, self._word, self._staged = team, word, staged
        self._root, *blocks = units_of(staged.model)
        self._state: Any = self._root._get_fsdp_state()
        uses: dict[nn.Parameter, set[int]] = {}
        for name, one in staged.model.named_parameters(remove_duplicate=False):  # one that is tied has several names
            uses.setdefault(one, set()).update(staged.stages.parameters[name])
        self._blocks = [(unit, set().union(*(uses[one] for one in unit.parameters()))) for unit in blocks]
        """Each with the stages that use it."""
        held = parameters_of(staged.model).items()
        self._sharded = {name: uses[one] for name, one in held if is_sliced(one, "shard")}
        """By name, the stages that use a parameter."""
        self._used: set[str] = set()
        """What has a gradient in this step, on this worker."""
        for unit in (self._root, *blocks):
            state = unit._get_fsdp_state()
            state._pre_forward_hook_handle.remove()
            state._post_forward_hook_handle.remove()
        self._root.set_reshard_after_backward(False)

    def gather(self) -> None:
        """All that this worker's stages have; all workers that hold them call this."""
        for unit in self._units():
            unit.unshard()

    def begin(self, micros: int) -> int | None:
        """A table of so many micro-batches follows here; how many it must have, or None if a worker was lost."""
        self._state._lazy_init()
        self._used.clear()
        if self._word == "params":  # code between the layers uses the rest of the model at any time
            self._root.unshard()
        else:
            self.gather()
        if self._word == "optimizer":
            return micros
        counts = self._team.lines.shards.gather(torch.tensor([micros])).wait()
        return None if counts is None else int(torch.stack(counts).max())

    @contextmanager
    def around(self, action: Action) -> Iterator[None]:
        """An action of the table, of a micro-batch that this worker may not have."""
        if self._word == "params":
            for unit in self._units(action.stage):
                unit.unshard()
        yield
        if self._word != "optimizer" and action.kind in "BW":
            self._add_up(action.stage)
        if self._word == "params":
            for unit in self._units(action.stage):
                unit.reshard()

    def end(self, *, lost: bool) -> bool:
        """The table is executed: each worker keeps its part of the gradients; False if a worker was `lost`."""
        if not lost and self._word == "optimizer":
            self._add_up()
        for parameter in self._staged.model.parameters() if lost else ():
            parameter.grad = None
        for unit in self._units():
            unit.reshard()
        return not lost and self._forget_unused()

    def _units(self, stage: int | None = None) -> list[Any]:
        """The blocks of one stage; or all, and the rest of the model."""
        if stage is None:
            return [self._root, *(unit for unit, _ in self._blocks)]
        return [unit for unit, stages in self._blocks if stage in stages]

    def _add_up(self, stage: int | None = None) -> None:
        """The gradients of one stage, or of all, over the workers that hold it: zeros where this one has none."""
        for name, parameter in self._staged.model.named_parameters():
            here = stage is None or stage in self._sharded.get(name, ())
            if here and name in self._sharded and parameter.requires_grad:
                if parameter.grad is None:
                    parameter.grad = torch.zeros_like(parameter)
                else:
                    self._used.add(name)
        self._state._root_post_backward_final_callback()  # private: public is only a backward pass that calls it

    def _forget_unused(self) -> bool:
        """What no worker has used has no gradient, rather than zeros; False if a worker was lost."""
        held = parameters_of(self._staged.model)
        names = sorted(self._sharded)
        used = torch.tensor([float(name in self._used) for name in names])
        if not self._team.lines.shards.sum(used).wait():
            return False
        for name, count in zip(names, used.tolist(), strict=True):
            if count == 0.0:
                held[name].grad = None
        return True
