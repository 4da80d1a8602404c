"""The same peer as `ddp.py`, but fed as PyTorch's own tutorials teach it: `DataLoader` with `DistributedSampler`.

Its samples are collated one by one, the default. Started like `ddp.py`: `ddp_loader.py TASK SOCKET NAME`.
"""

from __future__ import annotations

import sys
from typing import Any

import torch
import torch.distributed as dist
from pace import Pace
from tasks import TASKS
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler


def main() -> None:
    """Train until nobody wants a further step."""
    name, path, system = sys.argv[1:]
    task = TASKS[name]
    torch.set_num_threads(1)
    torch.set_num_interop_threads(1)
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    model = DistributedDataParallel(task.model(), gradient_as_bucket_view=True)
    optimizer = task.optimizer(model.parameters())
    data = TensorDataset(*task.data())
    sampler: DistributedSampler[Any] = DistributedSampler(data)
    loader = DataLoader(data, batch_size=task.batch // dist.get_world_size(), sampler=sampler, drop_last=True)
    pace = Pace(path, system, dist.get_rank())
    epoch = 0
    while not pace.ended:
        sampler.set_epoch(epoch)
        for x, y in loader:
            optimizer.zero_grad(set_to_none=True)
            loss = task.loss(model(x), y)
            loss.backward()
            optimizer.step()
            pace.step()
            if pace.ended:
                break
        epoch += 1
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
