"""The MLP on digits under sync=auto, whose decisions come every two steps and are given: `choices`, in this order."""

from __future__ import annotations

from typing import Any

import mlp
from uneven import Uneven, parts

import cordee
from cordee.group.team import Team
from cordee.sync import adaptive
from cordee.sync.ways import Decision, Way
from cordee.train import reducers

CODECS = ("none", "bf16", "int8", "topk")


def job(
    choices: str = "int8 topk none bf16",
    optimizer: str = "momentum",
    stop_steps: int | None = None,
    epochs: int = 1,
    dies: int = -1,
    begins: str = "none",
) -> cordee.Job:
    """Each choice is a codec, or for local steps a codec and their number, such as int8:2; so is how it `begins`.

    The worker `dies` is lost in the middle of the second window.
    """
    coming = iter(choices.split())

    def way_of(choice: str) -> Way:
        codec, _, every = choice.partition(":")
        return Way(codec, int(every or 0))

    def decide(measured: Any, costs: Any, ways: Any, *args: Any) -> Decision:
        chosen = way_of(next(coming, "none"))
        assert chosen.every == 0 or any(way.every for way in ways), "local steps cannot be done"
        return Decision(chosen, {}, "as it was told")

    def arrange(team: Team) -> None:
        if team.membership.worker == dies:
            parts(0.0, 3)

    reducers.WAYS = tuple(Way(codec, every) for every in (0, 2, 3) for codec in CODECS)
    adaptive.decide, adaptive.first_way = decide, lambda *args: way_of(begins)
    adaptive.FIRST, adaptive.SOON, adaptive.EVERY, adaptive.SPARE = 1, 2, 2, 0
    made = mlp.job(optimizer=optimizer, stop_steps=stop_steps)
    return made.replace(epochs=epochs, callbacks=[Uneven(arrange)])
