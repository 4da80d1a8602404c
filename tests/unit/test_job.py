"""A job refuses what cannot work, and names what was meant."""

from __future__ import annotations

import inspect
from typing import Any

import pytest
import torch
from torch import nn

import cordee
from cordee.core.errors import JobError


def job(**fields: Any) -> cordee.Job:
    given: dict[str, Any] = {
        "model": lambda: nn.Linear(64, 10),
        "loss": nn.functional.cross_entropy,
        "optimizer": torch.optim.SGD,
        "data": cordee.data.digits(),
    }
    return cordee.Job(**{**given, **fields})


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: job(epoch=5), "Job has no field 'epoch'. Did you mean epochs?"),
        (lambda: job().replace(epoch=5), "Job has no field 'epoch'. Did you mean epochs?"),
        (lambda: cordee.Stop(pateince=5), "Stop has no field 'pateince'. Did you mean patience?"),  # type: ignore[call-arg]
        (lambda: cordee.Save(every=5), "Save has no field 'every'. Fields: "),  # type: ignore[call-arg]
        (lambda: cordee.Job(nn.Linear, loss=print), r"Job(...) needs data=..., optimizer=... too"),  # type: ignore[call-arg, arg-type]
        (lambda: job(metrics={"loss": cordee.metrics.accuracy}), "metrics: 'loss' is the name"),
        (
            lambda: job(metrics={"accuracy": cordee.metrics.accuracy}, stop=cordee.Stop(metric="-acuracy")),
            "stop.metric='-acuracy': this job has no metric 'acuracy'. Did you mean accuracy? It has loss, accuracy",
        ),
        (lambda: job(save=cordee.Save(keep_best="zeal")), "save.keep_best='zeal': this job has no metric 'zeal'."),
    ],
)
def test_a_wrong_field_is_named(make: Any, words: str) -> None:
    with pytest.raises(JobError) as caught:
        make()
    assert str(caught.value).startswith(words)
    assert not str(caught.value).rstrip().endswith(",")


def test_a_job_is_made_as_its_signature_says() -> None:
    assert list(inspect.signature(cordee.Job).parameters)[:3] == ["model", "data", "optimizer"]
    made = cordee.Job(lambda: nn.Linear(64, 10), cordee.data.digits(), torch.optim.SGD, loss=nn.functional.mse_loss)
    assert (made.batch, made.epochs) == (32, 1)
