"""Which cuts of a model are refused before anything is cut."""

from __future__ import annotations

import pytest
from torch import nn

from cordee.core.errors import ModelError
from cordee.split.tensor import check


def test_patterns_name_every_layer_that_they_fit() -> None:
    model = nn.ModuleDict({"a": nn.Linear(4, 8), "b": nn.Linear(8, 4), "c": nn.Linear(4, 8)})
    assert check(model, {"[ac]": "colwise", "b": "rowwise"}, 2) == {"a": "colwise", "c": "colwise", "b": "rowwise"}


def test_a_shared_weight_is_not_cut() -> None:
    model = nn.ModuleDict({"table": nn.Embedding(8, 4), "head": nn.Linear(4, 8, bias=False)})
    model["head"].weight = model["table"].weight
    with pytest.raises(ModelError, match=r"table\.weight and head\.weight are one parameter"):
        check(model, {"head": "colwise"}, 2)
