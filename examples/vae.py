"""A variational autoencoder on handwritten digits: an objective of its own instead of a loss of output and target.

cordee train examples/vae.py --out runs/vae
python examples/vae.py runs/vae                      (digits as the trained model imagines them)
"""

import sys

import torch
from torch import Tensor, nn

import cordee

CODE = 8  # numbers that a digit is squeezed into


class Vae(nn.Module):
    def __init__(self, width: int = 256) -> None:
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(64, width), nn.ReLU(), nn.Linear(width, 2 * CODE))
        self.decoder = nn.Sequential(nn.Linear(CODE, width), nn.ReLU(), nn.Linear(width, 64))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        mean, log_variance = self.encoder(x).chunk(2, dim=1)
        code = mean
        if self.training:
            # These draws depend on the worker. So runs with different numbers of workers are the same up to the draws,
            # as with dropout; the same number of workers draws the same again. In evaluation nothing is drawn.
            code = mean + torch.exp(log_variance / 2) * torch.randn_like(mean)
        return self.decoder(code), mean, log_variance


def objective(model: nn.Module, batch) -> tuple[Tensor, Tensor]:
    """What digits and codes cost together, each a mean over the samples; and what the metric looks at."""
    pixels, mean, log_variance = model(batch.x)
    reconstruction = nn.functional.binary_cross_entropy_with_logits(pixels, batch.x, reduction="none").sum(1)
    divergence = 0.5 * (mean**2 + log_variance.exp() - 1 - log_variance).sum(1)
    error = (pixels.sigmoid() - batch.x).square().mean(1)
    return (reconstruction + divergence).mean(), error


job = cordee.Job(
    model=Vae,
    objective=objective,
    optimizer=lambda params: torch.optim.AdamW(params, lr=2e-3),
    data=cordee.data.digits(),
    batch=100,
    epochs=40,
    # A metric is given what the objective returned beside the loss (here a value a sample) and batch.y (here unused).
    metrics={"squared_error": lambda error, label: error},
)


if __name__ == "__main__":
    model = cordee.load(sys.argv[1], model=Vae)
    for image in model.decoder(torch.randn(3, CODE)).sigmoid().view(3, 8, 8):
        print("\n".join("".join(" .:-=+*%#@"[int(9.99 * pixel)] * 2 for pixel in row) for row in image), "\n")
