"""Compressed pushes: what servers read and what workers have left out add up to the gradients."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from cordee.group.bulk import Gone
from cordee.sync.lossy import LEFT_OUT
from cordee.sync.server import messages as said
from cordee.sync.server import rules
from cordee.sync.server.packing import Pack, Packing, unpack
from cordee.sync.server.shards import Shard
from serving import Serving

ALONE: Any = SimpleNamespace(replicas=1)
PUSHED = ["bf16", "fp16", "int8", "onebit", "topk"]


def read(codec: str, pack: Pack, parameters: Sequence[nn.Parameter]) -> list[Tensor]:
    """What a server makes of a push."""

    def receive(tensors: Sequence[Tensor]) -> None:
        for into, sent in zip(tensors, pack.tensors, strict=True):
            assert (into.shape, into.dtype) == (sent.shape, sent.dtype)
            into.copy_(sent)

    return unpack(codec, [rules.form_of(parameters[number]) for number in pack.numbers], receive)


@pytest.mark.parametrize("codec", PUSHED)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_nothing_is_lost_over_many_pushes(codec: str, dtype: torch.dtype) -> None:
    """Pushes of unequal shares; a push that does not count leaves all as it was."""
    torch.manual_seed(0)
    parameters = [nn.Parameter(torch.zeros(shape, dtype=dtype)) for shape in ((40, 30), (30,), ())]
    packing = Packing(codec, parameters, ALONE, {})
    given, used = ([torch.zeros_like(one) for one in parameters] for _ in range(2))
    for turn in range(60):
        share, numbers = (0.5, [0, 1, 2]) if turn % 3 else (0.25, [1, 2])
        gradients = [torch.randn_like(parameters[number]) for number in numbers]
        pack = packing.pack(numbers, [parameters[number] for number in numbers], gradients, share)
        if turn % 5 == 4:
            continue
        packing.commit_packs([pack])
        for number, gradient, came in zip(numbers, gradients, read(codec, pack, parameters), strict=True):
            given[number] += share * gradient
            used[number] += share * came
    rests = packing.merge()[LEFT_OUT]
    for one, came, rest in zip(given, used, rests, strict=True):
        torch.testing.assert_close(came + rest, one, rtol=0, atol=1e-4 if dtype is torch.float32 else 1e-12)
    assert any(rest.abs().max() > 0 for rest in rests)


def test_left_out_is_taken_up() -> None:
    """Each of two replicas begins with half of what all had left out."""
    parameter = nn.Parameter(torch.zeros(4))
    two: Any = SimpleNamespace(replicas=2)
    packing = Packing("topk", [parameter], two, {LEFT_OUT: [torch.tensor([8.0, 4.0, 2.0, 0.0])]})
    pack = packing.pack([0], [parameter], [torch.zeros(4)], 1.0)
    assert read("topk", pack, [parameter])[0].tolist() == [4.0, 2.0, 0.0, 0.0]
    assert pack.left_out[parameter].tolist() == [0.0, 0.0, 1.0, 0.0]


def test_powersgd_is_no_codec_of_pushes() -> None:
    with pytest.raises(Gone, match="sums over the replicas"):
        unpack("powersgd", [rules.form_of(torch.zeros(20, 20))], lambda tensors: None)


def test_only_the_push_that_counts_leaves_something_out() -> None:
    """A worker is lost after one server has applied its push; another one computes the part again."""
    serving = Serving()
    gradient = torch.arange(1000.0)
    item, settings = (0, 0, 0, 0), rules.settings_of(serving.optimizer)
    pushing = []
    for worker in (0, 1):
        packing = Packing("topk", [serving.parameter], ALONE, {})
        channel: Any = SimpleNamespace(**{**vars(serving.channel), "worker": worker})
        shard = Shard(0, [serving.parameter], 0, channel, 10.0, packing)
        for _ in range(2):  # the answer to the first try may be lost with a server
            serving.parameter.grad = gradient.clone()
            assert shard.update(item, 0.5, 1.0, settings).result() == said.Fresh(1, 0)
        pushing.append((shard, packing))
    counted, other = (packing.merge()[LEFT_OUT][0] for _, packing in pushing)
    assert counted.abs().sum() > 0 and not other.any()
    torch.testing.assert_close(-serving.parameter.detach() + counted, 0.5 * gradient)
    for shard in (serving.shard, *(shard for shard, _ in pushing)):
        shard.close()
    serving.listener.close()
