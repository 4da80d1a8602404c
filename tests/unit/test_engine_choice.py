"""Which engine a run is given, and its settings, as values."""

from __future__ import annotations

import pytest

from cordee.core.errors import CordeeError, UsageError
from cordee.runtime.api import Options
from cordee.runtime.engines.agent import Outcome, mismatch
from cordee.runtime.engines.choice import Chosen
from cordee.runtime.engines.places import error_of, what_follows
from cordee.runtime.spec import Target
from cordee.runtime.wording import COMMAND, PYTHON

TARGET = Target("job", "job.py")


def test_settings_are_read_by_name_and_kind() -> None:
    chosen = Chosen.parse("ray", {"cpus": "0.5", "each": "2", "resources": "fast:1,a100:0.5"})
    assert chosen is not None and (chosen.settings.cpus, chosen.settings.each) == (0.5, 2)
    assert chosen.settings.bundle(2) == {"CPU": 1.0, "fast": 2.0, "a100": 1.0}
    assert chosen.settings.counts(5) == [2, 2, 1]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (Options(workers=2, engine="rey"), "--engine rey is not known. Did you mean ray? Engines: ray"),
        (Options(workers=2, engine="ray", engine_settings={"cpu": 2}), "no setting cpu. Did you mean cpus?"),
        (Options(workers=2, engine="ray", engine_settings={"cpus": "two"}), "cpus was given 'two'; expected a number"),
        (Options(workers=2, engine="ray", engine_settings={"wait": 0}), "wait=0"),
        (Options(engine_settings={"cpus": 2}), "--engine-set needs --engine"),
        (Options(engine="ray"), "--engine ray needs --workers"),
        (Options(workers=2, engine="ray", nodes=2), "--nodes does not go with it"),
    ],
)
def test_a_mistake_is_told(options: Options, message: str) -> None:
    with pytest.raises(UsageError) as raised:
        options.launch(TARGET, COMMAND)
    assert message in str(raised.value)


def test_the_command_that_goes_on_names_the_engine() -> None:
    given = Options(workers=3, out="runs/a", engine="ray", engine_settings={"cpus": "2", "each": "3"})
    words = "--workers 3 --engine ray --engine-set cpus=2 --engine-set each=3 --resume"
    assert given.launch(TARGET, COMMAND).again().endswith(words)
    call = "engine='ray', engine_settings={'cpus': '2', 'each': '3'}, resume=True)"
    assert given.launch(TARGET, PYTHON).again().endswith(call)


@pytest.mark.parametrize(
    ("code", "begun", "soon", "follows"),
    [
        (None, False, 0, "again"),  # the node is gone
        (-9, True, 3, "again"),
        (None, True, 4, "warn"),
        (None, False, 4, "fail"),
        (0, True, 0, "nothing"),
        (12, False, 0, "fail"),
        (24, True, 0, "again"),
        (30, True, 0, "warn"),
    ],
)
def test_what_follows_when_a_place_is_lost(code: int | None, begun: bool, soon: int, follows: str) -> None:
    assert what_follows(Outcome(code), begun=begun, soon=soon) == follows


def test_other_versions_on_a_host_are_told() -> None:
    wanted = {"Python": "3.11", "torch": "2.13.0"}
    assert mismatch(wanted, wanted, "n1") == ""
    assert mismatch(wanted, {"Python": "3.11", "torch": "2.9.0"}, "n1") == (
        "host n1 has torch 2.9.0 instead of 2.13.0: install the same versions on all hosts"
    )
    assert error_of(None) is CordeeError and error_of(2) is UsageError
