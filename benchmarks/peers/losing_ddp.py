"""The peer torchrun: a loop by hand with DDP that keeps a snapshot, as the tutorials of elastic training teach it.

`torchrun --nproc-per-node=3 --max-restarts=N losing_ddp.py FOLDER`. When a worker is lost, torchrun starts all of them
again.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import torch
import torch.distributed as dist
from losing_task import BATCH, Log, Model, digits, optimizer
from torch import nn
from torch.nn.parallel import DistributedDataParallel

EVERY = 50
"""Steps between snapshots, as between Cordée's checkpoints."""


def main() -> None:
    """Train until we are ended."""
    folder = sys.argv[1]
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank, size = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    model = DistributedDataParallel(Model(), gradient_as_bucket_view=True)
    update = optimizer(model.parameters())
    x, y = digits()
    done, snapshot = 0, Path(folder, "snapshot.pt")
    if snapshot.exists():
        kept = torch.load(snapshot, weights_only=True)
        model.module.load_state_dict(kept["model"])
        update.load_state_dict(kept["optimizer"])
        done = kept["done"]
    log, per_epoch = Log(folder, rank), len(x) // BATCH
    while True:
        epoch, number = divmod(done, per_epoch)
        order = torch.randperm(len(x), generator=torch.Generator().manual_seed(epoch))
        ids = order[number * BATCH : (number + 1) * BATCH][rank::size]
        update.zero_grad(set_to_none=True)
        nn.functional.cross_entropy(model(x[ids]), y[ids]).backward()
        update.step()
        done += 1
        log.committed(done, BATCH, ids)
        if done % EVERY == 0 and rank == 0:
            state = {"model": model.module.state_dict(), "optimizer": update.state_dict(), "done": done}
            torch.save(state, half := snapshot.with_suffix(".part"))
            os.replace(half, snapshot)


if __name__ == "__main__":
    main()
