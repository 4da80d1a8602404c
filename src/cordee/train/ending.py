"""The end of a training: the best model, the test, the files that are left, and the result."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from torch import nn

from cordee.core.errors import CheckpointError
from cordee.core.events import ResultEvent, WarningEvent
from cordee.feed.features import save_features
from cordee.state.export import PROGRAM, WEIGHTS, called_with, save_model, save_program, trace_program
from cordee.state.handover import share_snapshot
from cordee.state.naming import Snapshot, capture, restore
from cordee.train.cutting import first_batch
from cordee.train.stopping import tell_cause

if TYPE_CHECKING:
    from cordee.train.loop import Training


@dataclass(frozen=True)
class Outcome:
    """How a job ended on this worker."""

    result: dict[str, Any]
    interrupted: str | None
    """Why it ended early, if it was asked to."""


def end(training: Training) -> Outcome:
    """Test, write what is left, and leave together; a worker that takes over as speaker does it anew."""
    job, stepper = training.job, training.stepper
    interrupted = training.interrupted
    brought_back = interrupted is None and _bring_back_best(training)
    test: dict[str, float] = {}
    if job.data.test is not None and interrupted is None:
        test = training.evaluate("test", job.data.test)
    if job.callbacks:  # they may change the model
        with stepper.reporter.aside("saving"):
            training.saver.before_update()
        training.call("on_end")
    stepper.merge(saving=True)
    while True:
        checksum = _write_files(training, brought_back=brought_back) if stepper.team.replica == 0 else ""
        result = {**_result(training, test, brought_back=brought_back), "params_sha256": checksum}
        if stepper.ledger.lost or stepper.ledger.repeated:
            stepper.reporter.tell(WarningEvent(stepper.ledger.told()))
        stepper.positions.end(list(training.setup.model.parameters()))
        stepper.reporter.tell(ResultEvent(result))
        if stepper.leave():
            return Outcome(result, interrupted)


def _bring_back_best(training: Training) -> bool:
    """Put the best model in the place of the last, of which a checkpoint stands before: a run goes on with that.

    Only the worker that speaks for all reads it: others may not see the folder. False, and a note, if it cannot.
    """
    stepper, saver, step = training.stepper, training.saver, training.evaluations.step
    if step in (-1, stepper.done):
        return False

    def read() -> Snapshot | None:
        training.write_checkpoint()
        saver.close()
        try:
            return saver.model_of(step)
        except CheckpointError as error:
            message = f"the model of this run is the last one, not the best, of step {step}: {error}"
            stepper.reporter.tell(WarningEvent(message))
            return None

    stepper.merge(saving=True)
    with stepper.reporter.aside("saving"):
        if stepper.team.sliced:  # of which all owners write their part
            training.write_checkpoint()
        snapshot = share_snapshot(stepper.team, read)
        if snapshot is not None:
            restore(snapshot, training.setup.model, partly=stepper.split.partly)
    return snapshot is not None


def _write_files(training: Training, *, brought_back: bool) -> str:
    """The last checkpoint, the model and its program; the checksum of its weights."""
    aside, model, device = training.stepper.reporter.aside, training.setup.model, training.stepper.device
    if not brought_back:  # otherwise it stands, and the model is no longer that of the last step
        with aside("saving"):
            training.write_checkpoint()
    if training.stepper.team.sliced:  # no worker holds all: what they have written is put together
        training.saver.close()
        if not training.stepper.team.speaks:
            return ""
        # In host memory: beside this worker's part and its optimizer's state, a GPU may have no room for all of it.
        model, device = training.job.make_model(), "cpu"
        step = training.evaluations.step if brought_back else training.stepper.done
        restore(training.saver.model_of(step), model)
    if training.interrupted is None:
        with aside("tracing"):  # seconds for a large model, while its checkpoint is written
            _write_program(training, model, device)
    with aside("saving"):
        training.saver.close()
        save_features(training.out, training.job.data.features)
        return save_model(training.out / WEIGHTS, capture(model, live=True))


def _write_program(training: Training, model: nn.Module, device: str) -> None:
    """The model as its job calls it, for those who do not have its code; why that cannot be done is on record."""
    job, batch = training.job, first_batch(training.job, training.setup.order, device, 3)
    try:
        call = called_with(model, lambda: job.compute(model, batch), lambda: model(batch.x))
        save_program(training.out / PROGRAM, model, trace_program(model, *call))
    except CheckpointError as error:
        training.stepper.reporter.tell(WarningEvent(str(error)))


def _result(training: Training, test: dict[str, float], *, brought_back: bool) -> dict[str, Any]:
    stepper, evaluations, job = training.stepper, training.evaluations, training.job
    reporter, epochs = stepper.reporter, training.next[0]
    reporter.write()
    samples = stepper.ledger.samples - training.samples_before
    is_best = brought_back or evaluations.step == stepper.done
    cause = training.interrupted or tell_cause(job, stepper.done, epochs, exhausted=evaluations.exhausted)
    return {
        "steps": stepper.done,
        "epochs": epochs,
        "ended": f"after step {stepper.done}: {cause}",
        "samples": stepper.ledger.samples,
        "workers": stepper.team.membership.size,
        "loss": stepper.last.loss if stepper.last is not None else None,
        "validation": evaluations.validation if is_best else training.validation,
        "test": test,
        "model": "best" if is_best else "last",
        "best": evaluations.best(),
        "throughput": round(samples / reporter.total_s, 2) if reporter.total_s else 0.0,
        "step_ms": reporter.step_ms(),
        "order_sha256": stepper.ledger.order_sha256,
        "steps_skipped": stepper.precision.skipped,
        "samples_lost": stepper.ledger.lost,
        "samples_repeated": stepper.ledger.repeated,
        "other_s": {kind: round(seconds, 4) for kind, seconds in reporter.aside_s.items()},
    }
