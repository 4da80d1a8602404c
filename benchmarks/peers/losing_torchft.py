"""The peer torchft: each worker is a replica group of one rank, as in its example of DDP; a lighthouse apart.

`losing_torchft.py lighthouse FILE` writes its address there; `losing_torchft.py FOLDER RANK SIZE ADDRESS [WAIT]`
trains. With WAIT it imports and makes all it can, and joins as soon as there is such a file: a warm replacement.
"""

from __future__ import annotations

import sys
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
from losing_task import BATCH, Log, Model, digits, optimizer
from torch import nn
from torch.distributed import TCPStore
from torch.utils.data import DataLoader, TensorDataset
from torchft import DistributedSampler, Manager, Optimizer, ProcessGroupGloo
from torchft.coordination import LighthouseServer
from torchft.ddp import PureDistributedDataParallel

TIMEOUT = timedelta(seconds=30)
GROUP_TIMEOUT = timedelta(seconds=1)
"""Survivors wait so long for a lost one: 5 s in its example."""


def guide(file: str) -> None:
    """The lighthouse, with the timeouts of its class."""
    lighthouse = LighthouseServer(bind="127.0.0.1:0", min_replicas=1)
    Path(file).write_text(lighthouse.address())
    while True:
        time.sleep(60)


def main() -> None:
    """Train until we are ended."""
    if sys.argv[1] == "lighthouse":
        guide(sys.argv[2])
    folder, rank, size, address, *wait = sys.argv[1:]
    torch.set_num_threads(1)
    torch.manual_seed(0)
    x, y = digits()
    data = TensorDataset(x, y, torch.arange(len(x)))
    sampler = DistributedSampler(
        data, replica_rank=int(rank), num_replica_groups=int(size), group_rank=0, num_replicas=1
    )
    loader = DataLoader(data, batch_size=BATCH // int(size), sampler=sampler)
    made = Model()
    if wait:
        Path(wait[0] + ".ready").touch()
    while wait and not Path(wait[0]).exists():
        time.sleep(0.002)
    log = Log(folder, int(rank))
    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)

    def state() -> dict[str, Any]:
        return {"model": made.state_dict(), "optimizer": update.state_dict()}

    def load(kept: dict[str, Any]) -> None:
        made.load_state_dict(kept["model"])
        update.load_state_dict(kept["optimizer"])

    manager = Manager(
        pg=ProcessGroupGloo(timeout=GROUP_TIMEOUT),
        min_replica_size=1,
        load_state_dict=load,
        state_dict=state,
        replica_id=f"replica{rank}",
        timeout=TIMEOUT,
        rank=0,
        world_size=1,
        store_addr="127.0.0.1",
        store_port=store.port,
        lighthouse_addr=address,
        hostname="127.0.0.1",
    )
    # Its other wrapper, DistributedDataParallel, fails with an AssertionError when a peer dies (0.2.0, on gloo).
    model = PureDistributedDataParallel(manager, made)
    update = Optimizer(manager, optimizer(made.parameters()))
    epoch = 0
    while True:
        sampler.set_epoch(epoch)
        for rows, classes, ids in loader:
            before = manager.current_step()
            update.zero_grad()
            nn.functional.cross_entropy(model(rows), classes).backward()
            update.step()
            if (now := manager.current_step()) > before:
                log.committed(now, manager.num_participants() * len(rows), ids)
        epoch += 1


if __name__ == "__main__":
    main()
