"""The end of a training: the best model, the test, the files that are left, and the result."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from cordee.core.events import ResultEvent, WarningEvent
from cordee.feed.permute import Ids
from cordee.state.export import WEIGHTS, save_model
from cordee.state.naming import capture, restore
from cordee.train.exporting import Exporter
from cordee.train.saving import Saver
from cordee.train.stopping import Ending

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
    job, stepper, model = training.job, training.stepper, training.setup.model
    interrupted = training.interrupted
    brought_back = interrupted is None and _bring_back_best(training)
    test: dict[str, float] = {}
    if job.data.test is not None and interrupted is None:
        test = training.evaluate("test", job.data.test)
    exporter = Exporter(job, stepper, _first_ids(training, 3), training.saver)
    if interrupted is None and not stepper.team.sliced:
        exporter.trace(model)
    with stepper.reporter.aside("saving"):
        training.saver.before_update()
    training.call("on_end")
    stepper.merge()
    while True:
        checksum = _write_files(training, exporter, brought_back=brought_back) if stepper.team.replica == 0 else ""
        result = {**_result(training, test, brought_back=brought_back), "params_sha256": checksum}
        if stepper.ledger.lost or stepper.ledger.repeated:
            stepper.reporter.tell(WarningEvent(stepper.ledger.told()))
        stepper.reporter.tell(ResultEvent(result))
        if stepper.leave():
            return Outcome(result, interrupted)


def _first_ids(training: Training, count: int) -> Ids:
    order = training.setup.order
    return order.ids(0, 0, slice(0, min(count, order.size(0))))


def _bring_back_best(training: Training) -> bool:
    """Put the best model in the place of the last, of which a checkpoint stands before: a run goes on with that."""
    stepper = training.stepper
    if training.best.step in (-1, stepper.done):
        return False

    def write_last() -> Saver:
        training.write_checkpoint()
        training.saver.close()
        return training.saver

    stepper.merge()
    with stepper.reporter.aside("saving"):
        if stepper.team.sliced:  # of which all owners write their part
            training.write_checkpoint()
        return training.best.bring_back(stepper, training.setup.model, write_last)


def _write_files(training: Training, exporter: Exporter, *, brought_back: bool) -> str:
    """The last checkpoint, the model and its program; the checksum of its weights."""
    aside, model = training.stepper.reporter.aside, training.setup.model
    if not brought_back:  # otherwise it stands, and the model is no longer that of the last step
        with aside("saving"):
            training.write_checkpoint()
    if training.stepper.team.sliced:  # no worker holds all: what they have written is put together
        training.saver.close()
        if not training.stepper.team.speaks:
            return ""
        model = training.job.make_model().to(training.stepper.device)
        restore(training.saver.model_of(training.best.step if brought_back else training.stepper.done), model)
    if training.interrupted is None:
        exporter.write(model, training.out)
    with aside("saving"):
        training.saver.close()
        return save_model(training.out / WEIGHTS, capture(model, live=True))


def _result(training: Training, test: dict[str, float], *, brought_back: bool) -> dict[str, Any]:
    stepper, best, job = training.stepper, training.best, training.job
    timing, epochs = stepper.reporter.timing, training.next[0]
    samples = stepper.ledger.samples - training.samples_before
    is_best = brought_back or best.step == stepper.done
    ending = Ending(stepper.done, epochs, training.interrupted, training.patience.exhausted, training.wish)
    return {
        "steps": stepper.done,
        "epochs": epochs,
        "ended": ending.told(job.stop, job.epochs),
        "samples": stepper.ledger.samples,
        "workers": stepper.team.membership.size,
        "loss": stepper.last.loss if stepper.last is not None else None,
        "validation": best.validation if is_best else training.validation,
        "test": test,
        "model": "best" if is_best else "last",
        "best": best.told(),
        "throughput": round(samples / timing.total_s, 2) if timing.total_s else 0.0,
        "step_ms": timing.percentiles(),
        "order_sha256": stepper.ledger.order_sha256,
        "steps_skipped": stepper.precision.skipped,
        "samples_lost": stepper.ledger.lost,
        "samples_repeated": stepper.ledger.repeated,
        "other_s": {kind: round(seconds, 4) for kind, seconds in stepper.reporter.aside_s.items()},
    }
