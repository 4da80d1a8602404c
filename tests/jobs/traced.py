"""The MLP, whose graphs under `compile=true` run as dynamo finds them: the C++ compiler would take half a minute."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from mlp import job as job  # the file beside this one

_compile = torch.compile
GRAPHS: list[object] = []


def _as_it_stands(graph: torch.fx.GraphModule, inputs: object) -> Callable[..., Any]:
    GRAPHS.append(graph)
    return graph.forward


def _traced(function: Callable[..., Any], *, fullgraph: bool = False, **settings: Any) -> Any:
    return _compile(function, fullgraph=fullgraph, backend=_as_it_stands)


torch.compile = _traced  # type: ignore[assignment]
