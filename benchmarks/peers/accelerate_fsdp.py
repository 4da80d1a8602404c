"""The peer Accelerate with FSDP2, each block a unit, as its documentation writes it but for one thing.

On CPUs Accelerate (1.15) has no FSDP: `AcceleratorState` takes the plugin up only where its distributed type is one of
MULTI_GPU and its kin, to which MULTI_CPU does not belong, and trains with DDP without a word. `use_fsdp` sets the type
by hand. From there on its own code runs: it shards the model and moves the optimizer over, on gloo.

Started like `ddp.py`, with LOCAL_RANK set too: `accelerate_fsdp.py TASK SOCKET NAME`.
"""

from __future__ import annotations

import os
import sys

import torch
from accelerate import Accelerator, DistributedType, FullyShardedDataParallelPlugin
from accelerate.state import AcceleratorState, PartialState
from gathered import loader
from pace import Pace
from tasks import TASKS
from torch.distributed.fsdp import FSDPModule


def use_fsdp(plugin: FullyShardedDataParallelPlugin) -> None:
    """Make Accelerate's state what it is on GPUs: of type FSDP, with this plugin."""
    for state in (AcceleratorState, PartialState):
        state._shared_state["distributed_type"] = DistributedType.FSDP
    AcceleratorState._shared_state["fsdp_plugin"] = plugin


def main() -> None:
    """Train until nobody wants a further step."""
    name, path, system = sys.argv[1:]
    task = TASKS[name]
    torch.set_num_threads(1)
    torch.set_num_interop_threads(1)
    os.environ["ACCELERATE_USE_FSDP"] = "true"
    plugin = FullyShardedDataParallelPlugin(
        fsdp_version=2,
        reshard_after_forward=True,
        auto_wrap_policy="transformer_based_wrap",
        transformer_cls_names_to_wrap=["Block"],
    )
    accelerator = Accelerator(cpu=True, fsdp_plugin=plugin)
    use_fsdp(plugin)
    torch.manual_seed(0)
    plain = task.model()
    model, optimizer, batches = accelerator.prepare(
        plain, task.optimizer(plain.parameters()), loader(task, accelerator.num_processes)
    )
    units = [module for module in model.modules() if isinstance(module, FSDPModule)]
    if len(units) != len(model.blocks):  # the model itself and its blocks; the last of the list is a norm
        sys.exit(f"Accelerate has made {len(units)} FSDP units, expected {len(model.blocks)}")
    pace = Pace(path, system, accelerator.process_index)
    while not pace.ended:
        for x, y in batches:
            optimizer.zero_grad()
            accelerator.backward(task.loss(model(x), y))
            optimizer.step()
            pace.step()
            if pace.ended:
                break
    accelerator.end_training()


if __name__ == "__main__":
    main()
