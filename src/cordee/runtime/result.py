"""How a run ended, for the caller of `cordee.train`: its values, its model, and a small table where it is shown."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cordee.core.words import plural

if TYPE_CHECKING:
    from torch import nn


@dataclass(frozen=True, repr=False)
class Result:
    """How a run ended: what `result.json` says, and where the run's files are. It prints as a small table."""

    out: Path
    values: Mapping[str, Any]

    def __getitem__(self, name: str) -> Any:
        """A value of `result.json`."""
        return self.values[name]

    @property
    def loss(self) -> float:
        """The last training loss."""
        return float(self.values["loss"])

    @property
    def validation(self) -> Mapping[str, float]:
        """Each validation metric by name."""
        return dict(self.values["validation"])

    @property
    def test(self) -> Mapping[str, float]:
        """Each test metric by name."""
        return dict(self.values["test"])

    def model(self) -> nn.Module:
        """The trained model."""
        from cordee.state.load import load

        return load(self.out)

    def __repr__(self) -> str:
        """The metrics as a table, and what else there is to know in a line each."""
        names, rows = self._metrics()
        widths = [max(map(len, column)) for column in zip(names, *rows.values(), strict=True)]
        table = {"": names, **rows} if rows else {}
        lines = {title: "  ".join(map(str.rjust, cells, widths)) for title, cells in table.items()}
        lines |= dict(self._about())
        first = max(map(len, lines))
        return "\n".join(f"{title:<{first}}  {text}".rstrip() for title, text in lines.items())

    def _metrics(self) -> tuple[list[str], dict[str, list[str]]]:
        """The names of the metrics, and for each part of the data its values."""
        given = {
            "training": {"loss": self.values["loss"]} if "loss" in self.values else {},
            "validation": self.values.get("validation") or {},
            "test": self.values.get("test") or {},
        }
        names = list(dict.fromkeys(name for values in given.values() for name in values))
        rows = {
            part: [_figure(values[name]) if name in values else "" for name in names]
            for part, values in given.items()
            if values
        }
        return names, rows

    def _about(self) -> Iterator[tuple[str, str]]:
        values = self.values
        best = values.get("best")
        if best:
            name = "the model" if values.get("model") == "best" else "not the model"
            yield "best", f"{best['metric']} {_figure(best['value'])} after step {best['step']} ({name})"
        if "steps" in values:
            yield "steps", f"{values['steps']:,} in {plural(values.get('epochs', 0), 'epoch')}"
        if values.get("throughput"):
            length = f", {values['step_ms']['p50']:.3g} ms per step" if values.get("step_ms") else ""
            workers = plural(values.get("workers", 1), "worker")
            yield "speed", f"{values['throughput']:,.0f} samples/s{length}, {workers}"
        if values.get("failures"):
            lost = values.get("samples_lost", 0) + values.get("samples_repeated", 0)
            kept = "every sample was used once" if not lost else f"{lost} samples lost or repeated"
            yield "lost", f"{plural(values['failures'], 'worker')}; {kept}"
        if values.get("ended"):
            yield "ended", str(values["ended"])
        yield "folder", str(self.out)


def _figure(value: float | None) -> str:
    """A loss or a metric."""
    return "not finite" if value is None else f"{value:.4f}"
