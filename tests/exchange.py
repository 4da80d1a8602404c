"""A codec's exchange among replicas that are all in this process."""

from __future__ import annotations

import copy
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from cordee.feed.batch import Batch
from cordee.feed.share import Share
from cordee.sync.buckets import Buckets
from cordee.sync.codec.seam import Codec, Summed
from cordee.sync.lossy import CODECS
from cordee.train.jobfile import load_job
from harness import job_file


def exchange(
    codec: Codec,
    flats: Sequence[Tensor],
    windows: Sequence[Sequence[Tensor]],
    memories: Sequence[dict[int, Tensor]],
) -> tuple[list[Tensor], int]:
    """Sum `flats`, one of each replica, in place: what each left out, and the bytes that one of them sent."""
    running = [codec(*given) for given in zip(flats, windows, memories, strict=True)]
    messages, sent = [next(one) for one in running], 0
    left_out: list[Tensor] = []
    while not left_out:
        sent += messages[0].tensor.nbytes
        tensors = [message.tensor for message in messages]
        came = [torch.stack(tensors).sum(0) if isinstance(messages[0], Summed) else tensors for _ in running]
        messages = []
        for one, answer in zip(running, came, strict=True):
            try:
                messages.append(one.send(answer))
            except StopIteration as end:
                left_out.append(end.value)
    return left_out, sent


def by_hand(codecs: list[str], shares: list[float]) -> tuple[list[float], dict[str, torch.Tensor]]:
    """Losses and weights of replicas in this process whose gradients are summed by a codec for each step, or none."""
    job = load_job(job_file("mlp"), {"optimizer": "momentum"})
    order, share = job.order(job.resolve(1)), Share("proportional", tuple(shares))
    workers = range(len(shares))
    torch.set_num_threads(1)
    torch.manual_seed(job.seed)
    model = job.model().train()
    models = [copy.deepcopy(model) for _ in workers]
    optimizers = [job.optimizer(one.parameters()) for one in models]
    buckets = [Buckets.of(list(one.parameters()), (), 0, 25.0, apart=True)[0] for one in models]
    left_out, memories = [torch.zeros_like(one.flats[0]) for one in buckets], [{} for _ in workers]
    losses = []
    for step in range(order.steps):
        whole = order.ids(0, step)
        total = 0.0
        for worker in workers:
            ids = whole[np.asarray(share.positions(len(whole), workers, worker))]
            loss, _ = job.compute(models[worker], Batch(ids, job.data.train.gather(ids)))
            optimizers[worker].zero_grad()
            (loss * len(ids) / len(whole)).backward()
            total += len(ids) * float(loss.detach())
            for parameter, view in zip(buckets[worker].parameters, buckets[worker].views[0], strict=True):
                view.copy_(parameter.grad)
                parameter.grad = view
            buckets[worker].flats[0].add_(left_out[worker])
        losses.append(total / len(whole))
        flats, views = [one.flats[0] for one in buckets], [one.views[0] for one in buckets]
        codec = codecs[min(step, len(codecs) - 1)]
        if codec == "none":
            total_gradient = torch.stack(flats).sum(0)
            for flat in flats:
                flat.copy_(total_gradient)
            left_out = [torch.zeros_like(flat) for flat in flats]
        else:
            left_out, _ = exchange(CODECS[codec], flats, views, memories)
        for optimizer in optimizers:
            optimizer.step()
    return losses, models[0].state_dict()
