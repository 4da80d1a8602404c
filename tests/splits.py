"""Every split of a model over workers, and the models that train under them: for tests and `benchmarks/products.py`."""

from __future__ import annotations

from typing import Any, NamedTuple

SPLITS = {
    "tensor=2": 2,
    "pipeline=2,schedule=1f1b": 2,
    "pipeline=2,schedule=gpipe": 2,
    "pipeline=2,schedule=interleaved": 2,
    "pipeline=2,schedule=zero-bubble": 2,
    "shard=optimizer": 2,
    "shard=gradients": 2,
    "shard=params": 2,
    "tensor=2,pipeline=2": 4,
}
"""With the workers of one replica. Each is also trained with two replicas, on twice the workers."""
ALONE = {
    "tensor=2,shard=params": 4,
    "pipeline=2,shard=optimizer": 4,
    "pipeline=2,shard=gradients": 4,
    "pipeline=2,shard=params": 4,
}
"""With one replica only."""


class Split(NamedTuple):
    """A plan, and the workers that it runs on."""

    plan: str
    workers: int
    replicas: int = 1

    def doubled(self) -> Split:
        """Two replicas of it."""
        return Split(self.plan + ",shards=2" * ("shard=" in self.plan), 2 * self.workers, 2 * self.replicas)


PLANS: dict[str, Split] = {"data=2": Split("auto", 2, 2)}
"""By name; the first one is not split: what differs there does not come from a split."""
PLANS |= {plan: Split(plan, workers) for plan, workers in SPLITS.items()}
PLANS |= {f"data=2 × {plan}": Split(plan, workers).doubled() for plan, workers in SPLITS.items()}
PLANS |= {plan: Split(plan, workers) for plan, workers in ALONE.items()}


class Model(NamedTuple):
    """A job of `tests/jobs` that trains for 20 steps, with AdamW and clipping, in fp64."""

    words: str
    """What it is, for the table in the docs."""
    job: str
    settings: dict[str, Any]
    batchnorm: bool = False

    def plan(self, split: Split) -> str:
        """The plan under which it trains; BatchNorm needs all samples of a replica at once."""
        whole = self.batchnorm and "pipeline" in split.plan and split.replicas == 1
        return split.plan + ",micro_batches=1" * whole


def _of_transformers(words: str, kind: str) -> Model:
    return Model(f"{words} of `transformers`", "cut_models", {"kind": kind, "steps": 20, "clip": 0.5})


MODELS = {
    "mlp": Model("five linear layers", "staged", {"kind": "deep", "stop_steps": 20}),
    "lenet": Model("LeNet: convolutions, then two linear layers", "staged", {"kind": "lenet", "stop_steps": 20}),
    "cnn": Model("convolutions with GroupNorm", "staged", {"kind": "group", "stop_steps": 20}),
    "cnn-bn": Model(
        "convolutions and linear layers with BatchNorm", "cnn", {"stop_steps": 20, "epochs": 2, "clip": 0.5}, True
    ),
    "resnet18": Model("ResNet-18, narrow, with BatchNorm", "resnet", {"stop_steps": 20}, True),
    "gpt": Model("a GPT whose head is its embedding", "gpt", {"stop_steps": 20, "epochs": 3, "clip": 0.5}),
    "gpt2": _of_transformers("GPT-2", "gpt2"),
    "llama": _of_transformers("Llama with rotary embeddings and grouped heads", "llama"),
    "qwen3": _of_transformers("Qwen3", "qwen3"),
    "bert": _of_transformers("BERT with a classification head", "bert"),
    "vit": _of_transformers("ViT", "vit"),
}
