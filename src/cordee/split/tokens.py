"""Blocks in which each worker of a replica holds some of the tokens, from site to row layer all of them."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from cordee.group.replay import once
from cordee.group.team import Team
from cordee.split.cut import Stream
from cordee.split.layers import gathered, own_slice

TOKENS = -2
"""The dimension of tokens; features are the last one."""


def share_tokens(model: nn.Module, stream: Stream, team: Team) -> None:
    """Let a chain of blocks compute with some of the tokens, in place."""
    modules, tokens = dict(model.named_modules()), _Tokens(team)
    modules[stream.first].register_forward_pre_hook(partial(tokens.enter, stream.into), with_kwargs=True)
    for number, site in enumerate(stream.sites, start=1):
        hook = partial(tokens.gather, number, site.arguments)
        modules[site.module].register_forward_pre_hook(hook, with_kwargs=True)
    for number, row in enumerate(stream.rows, start=1 + len(stream.sites)):
        modules[row].register_forward_hook(partial(tokens.keep, number))
    modules[stream.last].register_forward_hook(partial(tokens.leave, stream.out_of))


class _Tokens:
    """How many tokens there are in this pass, what was gathered last, and where random draws come from.

    Some tokens are drawn for by each worker in its own way, and perhaps in other numbers: so all of them begin anew
    where they compute the same again.
    """

    def __init__(self, team: Team) -> None:
        self._team, self._count, self._seed = team, 0, 0
        self._gathered: tuple[Tensor, Tensor] | None = None

    def enter(self, at: int | str, module: nn.Module, args: Any, kwargs: Any) -> Any:
        """The first block gets some of the tokens."""
        given = by_key(args, kwargs)
        self._count = given[at].shape[TOKENS]
        self._seed = int(torch.randint(2**40, ())) if module.training else 0
        self._draw(module, 0, own=True)
        return as_call({**given, at: self._own(given[at])})

    def gather(self, number: int, keys: tuple[int | str, ...], module: nn.Module, args: Any, kwargs: Any) -> Any:
        """A site gets all tokens; layers that take the same tensor share one gather."""
        given = by_key(args, kwargs)
        self._recall()
        for key in keys:
            part = given[key]
            if self._gathered is None or self._gathered[0] is not part:
                self._gathered = part, gathered(part, TOKENS, self._count, self._team)
            given[key] = self._gathered[1]
        self._draw(module, number, own=False)
        return as_call(given)

    def keep(self, number: int, module: nn.Module, args: Any, result: Any) -> Any:
        """After a row layer each worker goes on with its tokens."""
        self._gathered = None
        self._recall()
        self._draw(module, number, own=True)
        return with_result(result, 0, self._own(as_results(result)[0]))

    def leave(self, at: int, module: nn.Module, args: Any, result: Any) -> Any:
        """The last block gives all tokens."""
        self._draw(module, 0, own=False)
        return with_result(result, at, gathered(as_results(result)[at], TOKENS, self._count, self._team))

    def _recall(self) -> None:
        """In a block that is computed again, go on with what its first pass knew: another may have come since."""
        self._count, self._seed = once(lambda: (self._count, self._seed))

    def _own(self, whole: Tensor) -> Tensor:
        return own_slice(whole, TOKENS, self._team)

    def _draw(self, module: nn.Module, number: int, *, own: bool) -> None:
        """From here on, random numbers of this worker's own, or the same on all workers."""
        if module.training:  # a number for each place, so that a pass which is computed again draws the same
            slices = self._team.slices
            torch.manual_seed(self._seed + number * (slices.size + 1) + (1 + slices.rank if own else 0))


def by_key(args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[int | str, Any]:
    """The arguments of a call, by place and by name."""
    given: dict[int | str, Any] = dict(enumerate(args))
    given.update(kwargs)
    return given


def as_call(given: dict[int | str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The other way round."""
    args = tuple(value for key, value in given.items() if isinstance(key, int))
    return args, {key: value for key, value in given.items() if isinstance(key, str)}


def as_results(result: Any) -> tuple[Any, ...]:
    """What a module has returned, as a tuple."""
    return tuple(result) if isinstance(result, (tuple, list)) else (result,)


def with_result(result: Any, at: int, value: Tensor) -> Any:
    """What a module has returned, with another value at one place."""
    if not isinstance(result, (tuple, list)):
        return value
    return type(result)([value if place == at else one for place, one in enumerate(result)])
