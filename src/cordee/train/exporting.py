"""The model of a finished training as a program that needs no source code."""

from __future__ import annotations

from pathlib import Path

from torch import nn

from cordee.core.errors import CordeeError
from cordee.feed.batch import Batch
from cordee.feed.permute import Ids
from cordee.feed.source import map_tensors
from cordee.state.export import PROGRAM, called_with, save_program
from cordee.train.job import Job
from cordee.train.session import Session


def write_program(job: Job, session: Session, model: nn.Module, out: Path, ids: Ids) -> None:
    """Trace `model` as the job calls it with the samples `ids`; why that cannot be done is a note in the record."""
    batch = Batch(ids, map_tensors(lambda tensor: tensor.to(session.device), job.data.train.gather(ids)))
    try:
        ways = (lambda: job.compute(model, batch), lambda: model(batch.x))
        save_program(out / PROGRAM, model, *called_with(model, *ways))
    except CordeeError as error:
        session.tell("warning", {"message": str(error)})
