"""The peer torchft with its DiLoCo: each host is a replica group of one rank, the first one runs the lighthouse.

Started by `network.py` like `network_ddp.py`: `network_torchft.py TASK SOCKET NAME STEPS_PER_MERGE`.
"""

from __future__ import annotations

import os
import socket
import sys
from datetime import timedelta
from typing import Any

import torch
from pace import Pace
from peers.shakespeare import TASKS, shares
from torch.distributed import TCPStore
from torchft import Manager, ProcessGroupGloo
from torchft.coordination import LighthouseServer
from torchft.local_sgd import DiLoCo

TIMEOUT = timedelta(seconds=300)
OUTER_LR, OUTER_MOMENTUM = 0.7, 0.9
"""Those of the DiLoCo paper, and of Cordée's outer=nesterov."""


def main() -> None:
    """Train until there is no further turn."""
    name, path, system, every = sys.argv[1:]
    task = TASKS[name]
    torch.set_num_threads(1)
    torch.set_num_interop_threads(1)
    rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    meeting, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    lighthouse = LighthouseServer(bind=f"0.0.0.0:{port}", min_replicas=size) if rank == 0 else None
    # What torchrun does for a replica group: a store on its first host.
    store = TCPStore(socket.gethostname(), port + 1, is_master=True, wait_for_workers=False)
    model = task.model()
    optimizer = task.optimizer(model.parameters())
    outer = torch.optim.SGD(model.parameters(), lr=OUTER_LR, momentum=OUTER_MOMENTUM, nesterov=True)

    def state() -> dict[str, Any]:
        return {"model": model.state_dict(), "inner": optimizer.state_dict(), "outer": outer.state_dict()}

    def load(kept: dict[str, Any]) -> None:
        for part, value in (("model", model), ("inner", optimizer), ("outer", outer)):
            value.load_state_dict(kept[part])

    manager = Manager(
        pg=ProcessGroupGloo(timeout=TIMEOUT),
        load_state_dict=load,
        state_dict=state,
        min_replica_size=size,
        use_async_quorum=False,
        timeout=TIMEOUT,
        quorum_timeout=TIMEOUT,
        rank=0,
        world_size=1,
        store_addr=socket.gethostname(),
        store_port=port + 1,
        lighthouse_addr=f"http://{meeting}:{port}",
        replica_id=f"replica{rank}",
        hostname=socket.gethostname(),
        init_sync=False,  # all begin with the same weights
    )
    x, y = task.data()
    merging = DiLoCo(manager, [model], optimizer, outer, sync_every=int(every), use_bucketization=True)
    pace = Pace(path, system, rank, keep=task.keeper_of(lambda: model, path))
    with merging:
        for ids in shares(len(x), task.batch, rank, size):
            if pace.ended:
                break
            optimizer.zero_grad(set_to_none=True)
            loss = task.loss(model(x.index_select(0, ids)), y.index_select(0, ids))
            loss.backward()
            optimizer.step()
            pace.step()
    manager.shutdown(wait=False)
    if lighthouse is not None:
        lighthouse.shutdown()
    del store


if __name__ == "__main__":
    main()
