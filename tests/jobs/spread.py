"""The MLP on digits; every worker writes a digest of its parameters into a folder, wherever a window ends."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import mlp

import cordee
from cordee.train.job import Save
from cordee.train.session import stepper_of


class Written(cordee.Callback):
    """`agrees`: it asks for equal parameters there, too."""

    def __init__(self, folder: str, agrees: bool) -> None:
        self.folder, self.agrees = Path(folder), agrees

    def on_step(self, session: Any, done: Any) -> None:
        stepper = stepper_of(session)
        if done.steps != stepper.done:
            return
        (model,) = stepper.models
        if self.agrees:
            session.agree(model)
        digest = hashlib.sha256(b"".join(one.detach().numpy().tobytes() for one in model.parameters())).hexdigest()
        (self.folder / f"{done.steps}.{stepper.team.membership.worker}").write_text(digest)


def job(folder: str, agrees: bool = False) -> cordee.Job:
    base = mlp.job(optimizer="momentum")
    data = {"train": base.data.train}
    return base.replace(epochs=2, data=data, save=Save(steps=12, epochs=None), callbacks=[Written(folder, agrees)])
