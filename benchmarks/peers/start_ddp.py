"""The peer: DDP as a careful person writes it by hand; it saves model and optimizer at the end, by rank 0.

`start_ddp.py MILLIONS RANK SIZE FOLDER DEVICE`; prints the times of day of what happened.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
from start_tasks import BATCH, MAKING, STEPS, task_of
from torch import nn
from torch.nn.parallel import DistributedDataParallel


def main() -> None:
    """Train a few steps and save."""
    millions, rank, size, folder, device = float(sys.argv[1]), *map(int, sys.argv[2:4]), Path(sys.argv[4]), sys.argv[5]
    if device == "cpu":
        torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/meeting", rank=rank, world_size=size)
    torch.manual_seed(0)
    task = task_of(millions, device)
    model = task.model().to(device)
    trained: nn.Module = model
    if size > 1:
        trained = DistributedDataParallel(model, gradient_as_bucket_view=True)
    optimizer = task.optimizer(model.parameters())
    x, y = (tensor.to(device) for tensor in task.data())
    ends = []
    for step in range(STEPS):
        mine = slice(step * BATCH + rank * BATCH // size, step * BATCH + (rank + 1) * BATCH // size)
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast("cuda", dtype=torch.bfloat16, enabled=device != "cpu"):
            loss = task.loss(trained(x[mine]), y[mine])
        loss.backward()
        optimizer.step()
        loss.item()
        ends.append(time.time())
    began = time.time()
    if rank == 0:
        torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, folder / "saved.pt")
    saved_s = time.time() - began
    dist.barrier()
    gpu = torch.cuda.max_memory_allocated() if device != "cpu" else 0
    print(json.dumps({"making": MAKING, "steps": ends, "saving_s": saved_s, "gpu_bytes": gpu}), flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
