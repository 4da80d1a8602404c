"""The peer DistributedDataParallel over slow links, with or without PyTorch's PowerSGD hook.

Started by `network.py` as `torchrun` would start it: `network_ddp.py TASK SOCKET NAME plain|powersgd`.
"""

from __future__ import annotations

import sys

import torch
import torch.distributed as dist
from pace import Pace
from peers.shakespeare import TASKS, shares
from torch.distributed.algorithms.ddp_comm_hooks import powerSGD_hook as powersgd
from torch.nn.parallel import DistributedDataParallel

RANK_OF_MATRICES = 4
FIRST_COMPRESSED = 10
"""Steps before it send whole gradients. The documentation begins a search at a tenth of all steps: 40 here; fewer of
them are faster on slow links, and 2 is the least that the hook allows."""
ONE_BUCKET_MB = 100
"""All gradients in one bucket. With gloo, torch 2.13 and two buckets, gloo ended the process in two of two trainings of
the small GPT ("Is there a distributed collective mismatch in your code?"), with one bucket in none. Probable cause: the
hook starts sums in callbacks, whose order differs from rank to rank. Batching matrices of one shape showed no
difference here (ratio 0.98)."""


def main() -> None:
    """Train until there is no further turn."""
    name, path, system, hook = sys.argv[1:]
    task = TASKS[name]
    torch.set_num_threads(1)
    torch.set_num_interop_threads(1)
    dist.init_process_group("gloo")
    rank, size = dist.get_rank(), dist.get_world_size()
    bucket_mb = ONE_BUCKET_MB if hook == "powersgd" else None  # None: PyTorch's own choice
    model = DistributedDataParallel(task.model(), gradient_as_bucket_view=True, bucket_cap_mb=bucket_mb)
    if hook == "powersgd":
        state = powersgd.PowerSGDState(
            process_group=None, matrix_approximation_rank=RANK_OF_MATRICES, start_powerSGD_iter=FIRST_COMPRESSED
        )
        model.register_comm_hook(state, powersgd.powerSGD_hook)
    optimizer = task.optimizer(model.parameters())
    x, y = task.data()
    pace = Pace(path, system, rank, keep=task.keeper_of(lambda: model.module, path))
    for ids in shares(len(x), task.batch, rank, size):
        if pace.ended:
            break
        optimizer.zero_grad(set_to_none=True)
        loss = task.loss(model(x.index_select(0, ids)), y.index_select(0, ids))
        loss.backward()
        optimizer.step()
        pace.step()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
