"""A GPT of a chosen depth on one GPU, by Cordée's session or by hand, whole or with less memory.

`python large_loop.py SIDE DEPTH`: `whole` keeps everything on the GPU; `hand` recomputes each block and keeps the state
of AdamW in pinned host memory, block by block; `cordee` does the same by a plan. Says tokens/s and the peak of memory.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable

import torch
from gpu_tasks import LENGTH, VOCABULARY, Gpt2
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import cordee

WIDTH, HEADS, BATCH, STEPS, WARM_UP = 2_048, 16, 32, 6, 2
PLAN = "precision=bf16,recompute=block,offload=optimizer"


def adamw(parameters: list[nn.Parameter]) -> torch.optim.AdamW:
    """The optimizer of all sides."""
    return torch.optim.AdamW(parameters, lr=1e-4, weight_decay=0.1, fused=True)


def loss_of(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    """The mean over all tokens."""
    return nn.functional.cross_entropy(model(x).flatten(0, 1), y.flatten())


def say(seconds: list[float]) -> None:
    """The figures of a run, by its steps."""
    step = statistics.median(seconds[WARM_UP:])
    peak = torch.cuda.max_memory_allocated()
    print(f"figures {BATCH * LENGTH / step:.0f} {step:.4f} {peak}", flush=True)


def by_hand(model: Gpt2, x: Tensor, y: Tensor, update: Callable[[], None]) -> None:
    """The loop of whoever writes it himself."""
    seconds = []
    for number in range(STEPS):
        began = time.perf_counter()
        ids = torch.arange(BATCH, device="cuda") + BATCH * (number % 2)
        with torch.autocast("cuda", dtype=torch.bfloat16):
            loss = loss_of(model, x[ids], y[ids])
        loss.backward()
        update()
        model.zero_grad(set_to_none=True)
        torch.cuda.synchronize()
        seconds.append(time.perf_counter() - began)
    say(seconds)


class Recomputing(nn.Module):
    """A block that keeps its input alone."""

    def __init__(self, block: nn.Module) -> None:
        """Wrap it."""
        super().__init__()
        self.block = block

    def forward(self, x: Tensor) -> Tensor:
        """As the block."""
        result: Tensor = checkpoint(self.block, x, use_reentrant=False)
        return result


class ByBlocks:
    """AdamW with its state in pinned memory: an optimizer per block, of which one is updated while the next comes."""

    def __init__(self, model: Gpt2) -> None:
        """The embeddings and the last norm count as a block."""
        blocks = [list(block.parameters()) for block in model.blocks]
        inside = {one for block in blocks for one in block}
        self.optimizers = [adamw(block) for block in [*blocks, [p for p in model.parameters() if p not in inside]]]
        self.up, self.down = torch.cuda.Stream(), torch.cuda.Stream()
        self.homes: dict[tuple[Tensor, str], Tensor] = {}
        self.left: list[torch.cuda.Event] = []

    def fetch(self, optimizer: torch.optim.Optimizer) -> torch.cuda.Event:
        """Begin to bring its state."""
        with torch.cuda.stream(self.up):
            for parameter, state in optimizer.state.items():
                for name in ("exp_avg", "exp_avg_sq"):
                    state[name] = self.homes[parameter, name].to("cuda", non_blocking=True)
                    state[name].record_stream(torch.cuda.default_stream())
        return self.up.record_event()

    def store(self, optimizer: torch.optim.Optimizer) -> None:
        """Begin to take it away."""
        self.down.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self.down):
            for parameter, state in optimizer.state.items():
                for name in ("exp_avg", "exp_avg_sq"):
                    if (parameter, name) not in self.homes:
                        self.homes[parameter, name] = torch.empty_like(state[name], device="cpu", pin_memory=True)
                    self.homes[parameter, name].copy_(state[name], non_blocking=True)
                    state[name].record_stream(self.down)
                    state[name] = self.homes[parameter, name]
        self.left.append(self.down.record_event())

    def __call__(self) -> None:
        """One update."""
        self.left.clear()
        arrived = self.fetch(self.optimizers[0])
        for place, optimizer in enumerate(self.optimizers):
            if place > 1:
                self.left[place - 2].synchronize()
            following = self.optimizers[place + 1 : place + 2]
            coming = self.fetch(following[0]) if following else arrived
            torch.cuda.current_stream().wait_event(arrived)
            optimizer.step()
            self.store(optimizer)
            arrived = coming
        self.down.synchronize()


def by_cordee(model: nn.Module, x: Tensor, y: Tensor) -> None:
    """The same by a session."""
    seconds = []
    with cordee.session(plan=PLAN) as s:
        model = s.prepare(model)
        optimizer = adamw(list(model.parameters()))
        began = time.perf_counter()
        for batch in s.batches((x.cpu(), y.cpu()), batch=BATCH, epochs=STEPS * BATCH // len(x)):
            with s.autocast():
                loss = loss_of(model, batch.x, batch.y)
            s.backward(loss)
            s.step(optimizer)
            torch.cuda.synchronize()
            seconds.append(time.perf_counter() - began)
            began = time.perf_counter()
    say(seconds)


def main() -> None:
    """Train a few steps; code 3 says that the GPU has not enough memory."""
    side, depth = sys.argv[1], int(sys.argv[2])
    torch.manual_seed(0)
    tokens = torch.randint(VOCABULARY, (2 * BATCH, LENGTH + 1), device="cuda")
    x, y = tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous()
    try:
        with torch.device("cuda"):
            model = Gpt2(WIDTH, depth, HEADS)
        print(f"parameters {sum(one.numel() for one in model.parameters())}", flush=True)
        if side == "cordee":
            by_cordee(model, x, y)
        elif side == "hand":
            update = ByBlocks(model)
            model.blocks = nn.ModuleList(Recomputing(block) for block in model.blocks)
            by_hand(model, x, y, update)
        else:
            by_hand(model, x, y, adamw(list(model.parameters())).step)  # type: ignore[arg-type]
    except torch.OutOfMemoryError as error:
        print(f"does not fit: {str(error).splitlines()[0]}", flush=True)
        sys.exit(3)


if __name__ == "__main__":
    main()
