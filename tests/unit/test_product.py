"""How a product of matrices is divided among workers."""

from __future__ import annotations

import pytest
import torch

from cordee.core.errors import UsageError
from cordee.split import matmul
from cordee.split.product import CUTS, part_of


@pytest.mark.parametrize("cut", CUTS)
@pytest.mark.parametrize("count", [1, 2, 3, 4, 6, 7])
def test_the_parts_of_all_workers_make_the_product(cut: str, count: int) -> None:
    a, b = torch.randn(5, 7).double(), torch.randn(7, 3).double()
    whole = torch.zeros(5, 3).double()
    for place in range(count):
        part = part_of((5, 7, 3), cut, place, count)
        whole[part.rows, part.columns] += a[part.rows, part.terms] @ b[part.terms, part.columns]
    torch.testing.assert_close(whole, a @ b)


def test_blocks_divide_both_matrices() -> None:
    parts = [part_of((8, 5, 6), "blocks", place, 4) for place in range(4)]
    assert [(one.rows.start, one.columns.start) for one in parts] == [(0, 0), (0, 3), (4, 0), (4, 3)]
    assert all(one.terms == slice(0, 5) for one in parts)


def test_alone_it_is_the_product_and_nothing_is_sent() -> None:
    a = torch.randn(3, 4, requires_grad=True)
    made = matmul(a, torch.ones(4, 2), cut="rows")
    made.value.sum().backward()
    assert made.bytes_sent == 0 and torch.equal(a.grad, torch.full((3, 4), 2.0))  # type: ignore[arg-type]


def test_what_cannot_be_multiplied_is_refused() -> None:
    with pytest.raises(UsageError, match="Did you mean 'rows'"):
        matmul(torch.ones(2, 2), torch.ones(2, 2), cut="row")
    for b in (torch.ones(3, 2), torch.ones(2), torch.ones(2, 2).double()):
        with pytest.raises(UsageError, match="two matrices of one type"):
            matmul(torch.ones(2, 2), b)
