"""Models of several kinds, small and with random weights, whose cut over workers is found by itself."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

import cordee
from cordee.train.job import Save, Stop

WORDS, LENGTH, WIDTH = 61, 9, 24


class Encoder(nn.Module):
    """`nn.TransformerEncoder` with a mask for what is padded."""

    def __init__(self) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(WIDTH, 4, 2 * WIDTH, dropout=0.0, batch_first=True)
        self.words, self.encoder = nn.Embedding(WORDS, WIDTH), nn.TransformerEncoder(layer, 1)
        self.head = nn.Linear(WIDTH, 2)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.head(self.encoder(self.words(x), src_key_padding_mask=x > 50).mean(1))
        return out


class Reader(nn.Module):
    """Attention of torch between two sequences, with weights that are asked for and a mask for each head."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.asks = nn.Embedding(WORDS, WIDTH), nn.Parameter(torch.randn(3, WIDTH))
        self.attention = nn.MultiheadAttention(WIDTH, 4)
        self.head = nn.Linear(WIDTH, 2)

    def forward(self, x: Tensor) -> Tensor:
        seen = self.words(x).transpose(0, 1)
        asks = self.asks[:, None].expand(-1, len(x), -1)
        mask = (torch.arange(4 * 3 * LENGTH).reshape(4, 3, LENGTH) % 5 == 0).repeat(len(x), 1, 1)
        out, weights = self.attention(asks, seen, seen, attn_mask=mask)
        scores: Tensor = self.head(out.mean(0)) + weights.square().sum((1, 2))[:, None] * torch.ones(2)
        return scores


def make(kind: str, words: int, drop: float = 0.0) -> nn.Module:
    if kind in ("encoder", "reader"):
        return Encoder() if kind == "encoder" else Reader()
    import transformers as hf

    common: dict[str, Any] = {"vocab_size": words, "hidden_size": 32, "num_attention_heads": 4, "pad_token_id": 0}
    deep: dict[str, Any] = {**common, "num_hidden_layers": 2, "intermediate_size": 48}
    dropout = {"hidden_dropout_prob": drop, "attention_probs_dropout_prob": drop}
    if kind == "bert":
        return hf.BertForSequenceClassification(hf.BertConfig(**deep, **dropout, max_position_embeddings=16))
    if kind == "vit":
        config = hf.ViTConfig(**{**deep, **dropout}, image_size=12, patch_size=4, num_channels=1)
        return hf.ViTForImageClassification(config)
    if kind == "gpt2":
        drop = {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0, "bos_token_id": 0, "eos_token_id": 0}
        config = hf.GPT2Config(vocab_size=words, n_embd=32, n_head=4, n_layer=2, n_positions=16, **drop)
        return hf.GPT2LMHeadModel(config)
    if kind == "qwen3":
        return hf.Qwen3ForCausalLM(hf.Qwen3Config(**deep, num_key_value_heads=2, head_dim=8))
    assert kind in ("llama", "llama-uneven"), kind
    heads = {"num_attention_heads": 6, "num_key_value_heads": 3, "hidden_size": 48} if kind != "llama" else {}
    return hf.LlamaForCausalLM(hf.LlamaConfig(**{**deep, "num_key_value_heads": 2, **heads}))


def job(
    kind: str = "llama",
    steps: int = 20,
    clip: float = 0.5,
    save_steps: int | None = None,
    words: int = WORDS,
    drop: float = 0.0,
) -> cordee.Job:
    draw = torch.Generator().manual_seed(1)
    x = torch.randint(int(words == WORDS), words, (96, LENGTH), generator=draw)  # nought: what is padded
    y = x.sum(1) % 2
    pictures = torch.randn(96, 1, 12, 12, generator=draw).double()
    data = (pictures if kind == "vit" else x, y)

    def objective(model: nn.Module, batch: Any) -> Tensor:
        if kind in ("encoder", "reader"):
            return nn.functional.cross_entropy(model(batch.x), batch.y)
        if kind in ("bert", "vit"):
            return nn.functional.cross_entropy(model(batch.x).logits, batch.y)
        logits = model(batch.x).logits[:, :-1]
        return nn.functional.cross_entropy(logits.flatten(0, 1), batch.x[:, 1:].flatten())

    return cordee.Job(
        model=lambda: make(kind, words, drop).double(),
        objective=objective,
        optimizer=lambda params: torch.optim.AdamW(params, lr=3e-3),
        data=data,
        batch=13,
        epochs=None,
        clip=clip,
        stop=Stop(steps=steps),
        save=Save(steps=save_steps),
    )
