"""Tensors cut into parts: every byte once, and put back where it belongs."""

from __future__ import annotations

import pytest
import torch

from cordee.group.parts import in_parts


def tensors(seed: int) -> list[torch.Tensor]:
    torch.manual_seed(seed)
    return [
        torch.randn(7, 5),
        torch.randn(4, 3, 5, 5).to(memory_format=torch.channels_last),
        torch.randn(()),
        torch.randn(0, 3),
        torch.randn(100, dtype=torch.complex64),
        torch.arange(3) > seed,
        torch.randn(6, 4).t(),
    ]


@pytest.mark.parametrize("most", [1, 64, 333, 10**6])
def test_what_one_worker_has_comes_to_another_in_parts(most: int) -> None:
    given, own = tensors(1), tensors(2)
    sizes = []
    for sent, part in zip(in_parts(given, most), in_parts(own, most), strict=True):
        sizes.append(sum(piece.numel() for piece in part.own))
        part.put([one.clone() for one in sent.own])
    assert all(torch.equal(one, other) for one, other in zip(given, own, strict=True))
    assert max(sizes) <= most and sum(sizes) == sum(one.nbytes for one in given)


def test_cuts_do_not_depend_on_how_tensors_lie_in_memory() -> None:
    image = torch.randn(4, 3, 5, 5)
    cuts = [
        [one.numel() for part in in_parts([torch.ones(3), other], 100) for one in part.own]
        for other in (image, image.to(memory_format=torch.channels_last))
    ]
    assert cuts[0] == cuts[1]
