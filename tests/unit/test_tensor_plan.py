"""Which cuts of a model are refused before anything is cut."""

from __future__ import annotations

import pytest
from torch import nn

from cordee.core.errors import ModelError
from cordee.split.named import check


def test_patterns_name_every_layer_that_they_fit() -> None:
    model = nn.ModuleDict({"a": nn.Linear(4, 8), "b": nn.Linear(8, 4), "c": nn.Linear(4, 8)})
    for words in (("colwise", "rowwise"), ("column", "row")):
        cut, styles = check(model, {"[ac]": words[0], "b": words[1]}, 2)
        assert [(one.layer, one.how) for one in cut.layers] == [("a", "column"), ("c", "column"), ("b", "row")]
        assert not styles


def test_a_shared_weight_is_not_cut() -> None:
    model = nn.ModuleDict({"table": nn.Embedding(8, 4), "head": nn.Linear(4, 8, bias=False)})
    model["head"].weight = model["table"].weight
    with pytest.raises(ModelError, match=r"table\.weight and head\.weight are one parameter"):
        check(model, {"head": "colwise"}, 2)
