"""What a run says while it goes on."""

from __future__ import annotations

import io
import re
import sys
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from cordee.core.plan import Plan
from cordee.watch.progress import ProgressView
from records import epoch, event, made, start, step, worker


def said(*events: dict[str, Any]) -> list[str]:
    stream = io.StringIO()
    show = ProgressView(stream)
    for one in events:
        show(made(one))
    show.close()
    return stream.getvalue().splitlines()


def test_a_script_names_its_processes_once() -> None:
    lines = said(worker(1.0, 1), worker(1.0, 0), step(2.0, 1), step(2.1, 2))
    assert lines[0] == "processes: worker 0 is 100, worker 1 is 101"
    assert sum("processes" in line for line in lines) == 1


def test_a_plan_of_the_scripts_own_says_what_becomes_of_the_result() -> None:
    for own, words in (("accumulate=2", "the same result as in"), ("batchnorm=replica", "another result than in")):
        plan = Plan.parse(own)
        lines = said(event("plan", 1.0, plan=plan.to_dict(), faithfulness=plan.faithfulness))
        assert lines == [f"the script's own plan: {own} ({words} one process)"]


def test_an_epoch_without_validation_tells_its_training_loss() -> None:
    assert said(epoch(1.0, 0, 5, {})) == ["epoch 1: loss 1.0000"]
    assert said(epoch(1.0, 0, 5, {"loss": 0.5})) == ["epoch 1: validation loss 0.5000"]
    assert said({**event("epoch", 1.0, epoch=1, step=9, loss=None, validation={}, ms=0.0)}) == [
        "epoch 2: loss not finite"
    ]


# ------------------------------------------------------------- a terminal


class Terminal(io.StringIO):
    """A stream that says it is one."""

    def isatty(self) -> bool:
        return True


def bars(said: str) -> list[str]:
    """The counts of the bars that were drawn, in their order, without repetitions."""
    plain = re.sub(r"\x1b\[[?\d;]*[A-Za-z]", "", said)
    found = re.findall(r"step +(\d+/[\d?]+)", plain)
    return [one for place, one in enumerate(found) if place == 0 or found[place - 1] != one]


def test_the_bar_moves_in_a_run_that_is_over_at_once() -> None:
    """What is printed above it draws it as it is by then, not as it was when it was drawn the last time."""
    stream = Terminal()
    show = ProgressView(stream)
    for one in (*start(0.0, 1), *(step(2.0, number) for number in range(1, 6))):
        show(made(one))
    show(made(epoch(2.1, 0, 5, {"loss": 0.5})))
    before = stream.getvalue()
    assert bars(before)[-1] == "5/10"
    assert bars(before[before.index("epoch 1") :]) == ["5/10"]
    for one in (*(step(2.0, number) for number in range(6, 11)), epoch(2.1, 1, 10, {"loss": 0.25})):
        show(made(one))
    assert bars(stream.getvalue())[-1] == "10/10"
    show.close()
    assert bars(stream.getvalue())[0] == "0/10" and stream.getvalue().count("epoch") == 2


def test_a_script_has_a_bar_without_an_end_and_what_workers_print_stands_above() -> None:
    stream = Terminal()
    show = ProgressView(stream)
    show(made(step(2.0, 1)))
    show.display.note("\x1b[31mfrom a worker\x1b[0m [not markup]")
    show(made(step(2.0, 2)))
    show.close()
    assert bars(stream.getvalue()) == ["1/?", "2/?"]
    plain = re.sub(r"\x1b\[[?\d;]*m", "", stream.getvalue())
    assert "\x1b[2Kfrom a worker [not markup]\n" in plain  # in place of the bar, which follows it


# ------------------------------------------------------------- a notebook


def as_shown(text: str) -> list[str]:
    """The lines that a notebook shows: a carriage return begins a line anew, what is longer stays behind it."""
    lines = []
    for line in text.split("\n"):
        shown = ""
        for part in line.split("\r"):
            shown = part + shown[len(part) :]
        lines.append(shown.rstrip())
    return lines


@pytest.fixture
def notebook(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Callable[[], list[str]]:
    """What stands below a cell; IPython is loaded there, and its shell has a kernel."""
    monkeypatch.setitem(sys.modules, "IPython", SimpleNamespace(get_ipython=lambda: SimpleNamespace(kernel=object())))
    said: list[str] = []

    def lines() -> list[str]:
        said.append(capsys.readouterr().out)
        return as_shown("".join(said))

    return lines


def test_in_a_notebook_progress_is_one_line(notebook: Callable[[], list[str]]) -> None:
    show = ProgressView()
    assert show.display.streams == {1, 2}
    for one in (*start(0.0, 2), step(2.0, 1)):
        show(made(one))
    assert notebook()[0].startswith("step ")
    for number in range(2, 11):
        show(made(step(2.0, number, loss=1.0 / number)))
    show(made(epoch(2.1, 1, 10, {"accuracy": 0.5})))
    show.close()
    assert notebook() == ["epoch 2: validation accuracy 0.5000", "step 10 of 10, loss 0.1000", ""]


def test_in_a_notebook_notes_and_prints_stay_above_the_line(notebook: Callable[[], list[str]]) -> None:
    show = ProgressView()
    for one in (*start(0.0, 2), event("warning", 1.6, message="look"), step(2.0, 1, loss=0.5)):
        show(made(one))
    show.display.note("from a worker")
    show(made(event("failure", 2.1, worker=1, host="here", reason="killed", left=1)))
    show(made(step(2.2, 2, loss=0.25)))
    show.close()
    assert notebook() == [
        "note: look",
        "from a worker",
        "worker 1 on here was lost: killed; 1 left",
        "step 2 of 10, loss 0.2500",
        "",
    ]


def test_an_ipython_on_a_terminal_is_no_notebook(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "IPython", SimpleNamespace(get_ipython=SimpleNamespace))
    assert ProgressView().display.streams == frozenset()
    monkeypatch.setitem(sys.modules, "IPython", SimpleNamespace(get_ipython=lambda: None))
    assert ProgressView().display.streams == frozenset()


def test_a_run_that_shows_nothing_leaves_no_line(notebook: Callable[[], list[str]]) -> None:
    ProgressView().close()
    assert notebook() == [""]
