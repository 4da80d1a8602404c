"""Models of transformers in stages, unmodified, from tiny configurations with random weights."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from staging import compare

transformers = pytest.importorskip("transformers")

NO_DROPOUT = {"attention_dropout": 0.0}


def tokens(*shapes: tuple[int, int]) -> list[dict[str, Tensor]]:
    """Batches with padding on the right, which attention masks and labels leave out."""
    draw = torch.Generator().manual_seed(0)
    batches = []
    for rows, length in shapes:
        ids = torch.randint(0, 50, (rows, length), generator=draw)
        mask = torch.arange(length) < torch.randint(length // 2, length + 1, (rows, 1), generator=draw)
        batches.append({"input_ids": ids, "attention_mask": mask.long(), "labels": ids.masked_fill(~mask, -100)})
    return batches


def loss_of(model: nn.Module, batch: dict[str, Tensor]) -> Tensor:
    loss: Tensor = model(**batch).loss
    return loss


def gpt2(**more: Any) -> nn.Module:
    config = transformers.GPT2Config(
        vocab_size=50, n_positions=32, n_embd=16, n_layer=4, n_head=2, resid_pdrop=0, embd_pdrop=0, attn_pdrop=0, **more
    )
    return transformers.GPT2LMHeadModel(config).double()


def llama(**more: Any) -> nn.Module:
    config = transformers.LlamaConfig(
        vocab_size=50,
        hidden_size=16,
        intermediate_size=24,
        num_hidden_layers=4,
        num_attention_heads=4,
        **NO_DROPOUT,
        **more,
    )
    return transformers.LlamaForCausalLM(config).double()


def bert() -> nn.Module:
    config = transformers.BertConfig(
        vocab_size=50, hidden_size=16, num_hidden_layers=4, num_attention_heads=2, intermediate_size=24, num_labels=3,
        hidden_dropout_prob=0, attention_probs_dropout_prob=0, max_position_embeddings=32,
    )  # fmt: skip
    return transformers.BertForSequenceClassification(config).double()


def vit() -> nn.Module:
    config = transformers.ViTConfig(
        image_size=8, patch_size=4, hidden_size=16, num_hidden_layers=4, num_attention_heads=2, intermediate_size=24,
        num_labels=3, hidden_dropout_prob=0, attention_probs_dropout_prob=0,
    )  # fmt: skip
    return transformers.ViTForImageClassification(config).double()


pytestmark = pytest.mark.usefixtures("calm")


@pytest.mark.thinned(3)
@pytest.mark.parametrize("stages", [3, 2, 4])
def test_gpt2_with_a_tied_embedding(stages: int) -> None:
    plan = compare(gpt2(), loss_of, tokens((3, 8), (2, 8), (4, 5)), stages)
    assert [unit.name for unit in plan.units][2:6] == [f"transformer.h.{layer}" for layer in range(4)]
    assert [(tied.names, tied.stages) for tied in plan.tied] == [
        (("transformer.wte.weight", "lm_head.weight"), (0, stages - 1))
    ]
    assert [len(cut.points) for cut in plan.cuts] == [1] * (stages - 1)


@pytest.mark.thinned(3)
@pytest.mark.parametrize("stages", [3, 2, 4])
def test_llama_with_rotary_embeddings_and_grouped_heads(stages: int) -> None:
    plan = compare(llama(num_key_value_heads=2), loss_of, tokens((3, 8), (1, 8), (2, 5)), stages)
    assert [unit.name for unit in plan.units][1:5] == [f"model.layers.{layer}" for layer in range(4)]
    assert [len(cut.points) for cut in plan.cuts] == [1] * (stages - 1)


def test_the_halves_of_a_backward_pass_and_interleaved_stages() -> None:
    hands = [[0, 2], [1, 3]]
    compare(llama(num_key_value_heads=2), loss_of, tokens((3, 8), (2, 5)), 4, split=True, hands=hands)
    compare(gpt2(), loss_of, tokens((3, 8), (2, 5)), 4, split=True, hands=hands)


@pytest.mark.thinned(3)
@pytest.mark.parametrize("stages", [3, 2, 4])
def test_bert_for_classification(stages: int) -> None:
    def batches() -> list[dict[str, Tensor]]:
        return [{**batch, "labels": batch["input_ids"][:, 0] % 3} for batch in tokens((3, 8), (2, 8), (4, 5))]

    plan = compare(bert(), loss_of, batches(), stages)
    assert {f"bert.encoder.layer.{layer}" for layer in range(4)} <= {unit.name for unit in plan.units}


@pytest.mark.thinned(3)
@pytest.mark.parametrize("stages", [3, 2, 4])
def test_vit(stages: int) -> None:
    batches = [
        {"pixel_values": torch.randn(rows, 3, 8, 8).double(), "labels": torch.randint(0, 3, (rows,))}
        for rows in (3, 1, 4)
    ]
    compare(vit(), loss_of, batches, stages)


def test_experts_that_choose_by_numbers_and_a_cache() -> None:
    """The shape of such a layer is found with zeros; its cache of keys keeps nothing of the tries."""
    config = transformers.MixtralConfig(
        vocab_size=50, hidden_size=16, num_hidden_layers=3, num_attention_heads=2, num_key_value_heads=1,
        intermediate_size=24, num_local_experts=3, num_experts_per_tok=2, experts_implementation="eager",
    )  # fmt: skip
    model = transformers.MixtralForCausalLM(config).double()

    def objective(one: nn.Module, batch: dict[str, Tensor]) -> Tensor:
        logits = one(batch["input_ids"]).logits
        return nn.functional.cross_entropy(logits[:, :-1].flatten(0, 1), batch["input_ids"][:, 1:].flatten())

    compare(model, objective, tokens((3, 8), (2, 5)), 3)


def test_layers_that_are_checkpointed() -> None:
    model = llama(num_key_value_heads=2)
    model.gradient_checkpointing_enable({"use_reentrant": False})  # type: ignore[operator]
    compare(model, loss_of, tokens((3, 8), (2, 5)), 3)
    compare(model, loss_of, tokens((3, 8), (2, 5)), 3, split=True)
