"""The loss of a batch as one compiled function: model, loss and whatever else the job's objective computes.

First as one graph. On a GPU of its own its kernels are then replayed as CUDA graphs, unless the graph hands out more
than the loss: the next step overwrites the memory of a replayed graph, and a tensor that the user's function keeps (in
a list, an attribute) lies there. An objective that cannot be one graph is compiled in pieces and not replayed.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from cordee.core.errors import ModelError
from cordee.core.plan import Plan
from cordee.feed.batch import Batch
from cordee.train.job import Job

Loss = Callable[[Batch], Tensor]


def training_loss(job: Job, model: nn.Module, plan: Plan, *, alone: bool) -> Loss:
    """The loss of a batch, compiled if the plan asks for it; `alone`: no other worker adds to the gradients."""

    def loss_of(batch: Batch) -> Tensor:
        return job.compute(model, batch)[0]

    if not plan.compile:
        return loss_of
    warnings.filterwarnings("ignore", message="TensorFloat32 tensor cores")  # precision=tf32 is how a plan asks for it
    on_gpu = any(parameter.is_cuda for parameter in model.parameters())
    return _Compiled(loss_of, replay=on_gpu and replays(plan, alone=alone), always=plan.graphs == "true")


def replays(plan: Plan, *, alone: bool) -> bool:
    """Whether a GPU may replay the kernels of a step as CUDA graphs.

    By itself only for a worker `alone`, whose gradients no other worker sends or adds up.
    """
    return plan.graphs == "true" or (plan.graphs == "auto" and alone and plan.accumulate == 1)


class _Compiled:
    """A compiled loss; what cannot be compiled is told in the user's words."""

    def __init__(self, loss_of: Loss, *, replay: bool, always: bool) -> None:
        """`always`: replay graphs whatever the user's function keeps of them."""
        backend = partial(_replaying, always=always) if replay else "inductor"
        whole = torch.compile(loss_of, fullgraph=True, backend=backend)
        pieces = torch.compile(loss_of, mode="reduce-overhead" if replay and always else None)
        self._ways: list[Any] = [whole, pieces]
        self._last: tuple[int, int] | None = None

    def __call__(self, batch: Batch) -> Tensor:
        """The loss of this batch."""
        if self._last != (batch.epoch, batch.step):  # what graphs gave in the last step is not needed any more
            torch.compiler.cudagraph_mark_step_begin()  # type: ignore[no-untyped-call]
        self._last = (batch.epoch, batch.step)
        while True:
            try:
                return self._ways[0](batch)  # type: ignore[no-any-return]
            except Exception as error:
                if not type(error).__module__.startswith(("torch._dynamo", "torch._inductor")):
                    raise
                if len(self._ways) > 1:  # tracing has computed nothing yet: the batch is as it was
                    del self._ways[0]
                    continue
                first = (str(error).strip() or type(error).__name__).splitlines()[0]
                raise ModelError(
                    f"the plan says compile=true, but torch.compile fails on this model: {first}. Leave compile out, "
                    "or see https://docs.pytorch.org/docs/stable/torch.compiler_troubleshooting.html"
                ) from error


def _replaying(graph: torch.fx.GraphModule, inputs: list[Any], *, always: bool) -> Callable[..., Any]:
    """Inductor, with CUDA graphs for a graph that hands out nothing but the loss."""
    from torch._inductor.compile_fx import compile_fx  # as torch.compile itself calls it

    (outputs,) = graph.graph.output_node().args
    alone = not isinstance(outputs, tuple | list) or len(outputs) == 1
    return compile_fx(graph, inputs, config_patches={"triton.cudagraphs": alone or always})  # type: ignore[return-value]
