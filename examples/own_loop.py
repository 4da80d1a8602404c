"""A loop in your own hands: a GAN, two models with an optimizer each, that learns to draw digits.

python examples/own_loop.py                          (alone)
cordee run examples/own_loop.py --workers 2          (the same, shared; --epochs and --save go to the script)
"""

import argparse
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import save_file
from torch import Tensor, nn

import cordee

NOISE = 16  # numbers that a drawing is made of


def verdict(scores: Tensor, real: bool) -> Tensor:
    """How far the critic's scores are from the right answer: a mean over the samples, like any loss."""
    return nn.functional.binary_cross_entropy_with_logits(scores, torch.full_like(scores, float(real)))


parser = argparse.ArgumentParser()
parser.add_argument("--epochs", type=int, default=60)
parser.add_argument("--save", type=Path, default=Path("runs/generator.safetensors"))
options = parser.parse_args()

torch.manual_seed(0)
generator = nn.Sequential(
    nn.Linear(NOISE, 128, bias=False), nn.BatchNorm1d(128), nn.ReLU(), nn.Linear(128, 64), nn.Sigmoid()
)
critic = nn.Sequential(nn.Linear(64, 128), nn.LeakyReLU(0.2), nn.Linear(128, 1))
data = cordee.data.digits().train

with cordee.session() as s:  # alone, or one of many: nothing below knows
    generator, critic = s.prepare(generator), s.prepare(critic)
    generator_optimizer = torch.optim.Adam(generator.parameters(), lr=1e-3, betas=(0.5, 0.999))
    critic_optimizer = torch.optim.Adam(critic.parameters(), lr=1e-3, betas=(0.5, 0.999))
    for batch in s.batches(data, batch=100, epochs=options.epochs):
        # Noise that belongs to the sample, not to the worker: any number of workers trains the same two models.
        drawn = generator(2 * cordee.data.draws(batch, NOISE) - 1)
        s.backward(verdict(critic(batch.x), True) + verdict(critic(drawn.detach()), False))
        s.step(critic_optimizer)
        s.backward(verdict(critic(drawn), True))  # the generator wants the critic to err
        if s.step(generator_optimizer) and s.rank == 0 and batch.step == 0 and batch.epoch % 10 == 0:
            print(f"epoch {batch.epoch + 1}: the critic's loss is {s.last.loss:.4f}", flush=True)
        critic_optimizer.zero_grad()  # the generator's pass went through the critic and left gradients there

    if s.rank == 0:  # one worker speaks and writes for all
        generator.eval()
        drawings = generator(2 * torch.rand(1000, NOISE, device=s.device) - 1).detach().cpu()
        digits = data.gather(np.arange(len(data)))["x"]
        distance = (drawings.mean(0) - digits.mean(0)).abs().mean()
        print(f"the mean drawing differs from the mean digit by {distance:.3f} a pixel")
        options.save.parent.mkdir(parents=True, exist_ok=True)
        save_file(generator.state_dict(), options.save)
        print(f"saved {options.save}")
