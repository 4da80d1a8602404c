"""What befalls a run on a cluster: at a step of it, from outside."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path

from harness import Run, until

LONG_S = 400.0
"""How long a cluster may take on a busy machine: it is five Java machines, or as many nodes of Ray."""


class Gates:
    """Does something from outside when the workers of `tests/jobs/changing.py` wait at a gate, and then opens it."""

    def __init__(self, folder: Path, **actions: Callable[[], str]) -> None:
        """`at_4=act`: at the gate of step 4, into which goes what `act` returns. The run is in `folder / run`."""
        self._actions = {int(name.removeprefix("at_")): act for name, act in actions.items()}
        self.folder = folder
        self.pids = folder / "pids"
        self.pids.mkdir()
        self._thread = threading.Thread(target=self._act, daemon=True)
        self._thread.start()

    @property
    def settings(self) -> dict[str, str]:
        """Of the job."""
        gates = " ".join(f"{step}:{self._gate(step)}" for step in self._actions)
        return {"gates": gates, "pids": str(self.pids)}

    @property
    def words(self) -> list[str]:
        """The same for the command."""
        return [word for name, value in self.settings.items() for word in ("--set", f"{name}={value}")]

    def pid(self, worker: int) -> int:
        """The process of a worker."""
        return int((self.pids / str(worker)).read_text())

    def end(self) -> None:
        """Wait until all was done."""
        self._thread.join(LONG_S)
        assert not self._thread.is_alive()

    def _gate(self, step: int) -> Path:
        return self.folder / f"gate-{step}"

    def _act(self) -> None:
        for step, act in self._actions.items():
            until(self._gate(step).with_name(f"gate-{step}.here").exists, LONG_S)
            until(lambda: Run(self.folder / "run").of("step"))  # workers are ahead of what the first host knows
            making = self.folder / "making"
            making.write_text(act())
            making.replace(self._gate(step))
