"""Write the reference pages that are read off the code: `python docs/generate.py`; `--check` only compares.

What a page says of a command, a field, a function or an event stands in the code, as help or docstring; this file
only lays it out. `WORDS` below holds what the code leaves to be said here, and nothing that it says itself.
"""

from __future__ import annotations

import ast
import dataclasses
import inspect
import json
import re
import sys
import textwrap
from collections.abc import Callable, Iterable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

REFERENCE = Path(__file__).resolve().parent / "reference"
PRODUCTS = REFERENCE.parents[1] / "benchmarks" / "results" / "products.json"
ROUNDING = PRODUCTS.with_name("rounding.json")
NOTE = "<!-- Written by docs/generate.py from the code: change it there. -->"
WIDE = 88
"""A signature that is longer gets a line for each parameter."""

WORDS = {
    "Job.model": "A function that makes the model. Every worker makes its own; all then get the first one's weights.",
    "Job.data": "One of `cordee.data`'s, a PyTorch map-style dataset, arrays `(x, y)`, or a dict of `train`, "
    "`validation` and `test`. See [data](data.md).",
    "Job.optimizer": "A function from the model's parameters to a PyTorch optimizer.",
    "Job.loss": "A function of (output, target): the mean over the samples it is given. Either this or `objective`.",
    "Job.batch": "Samples of a step, over all workers together.",
    "Job.epochs": "Passes over the training data; `None` for no limit, with an end of `stop`'s.",
    "Job.metrics": "What validation and test measure, by name: functions or torchmetrics objects. See "
    "[metrics](metrics.md).",
    "Job.schedule": "A function from the optimizer to a PyTorch learning-rate scheduler.",
    "Job.seed": "Decides the order of the data, the first weights and the random draws of a step.",
    "Job.shuffle": "`full`, `blocks` (neighbours stay near each other, for data that is far away) or `none`.",
    "Job.drop_last": "Leave out the last batch of an epoch where it is shorter than the others.",
    "Job.stop": "When to end before the last epoch: a [`Stop`](#cordeestop).",
    "Job.save": "When checkpoints are written: a [`Save`](#cordeesave).",
    "Job.callbacks": "Objects that observe the run. See [callbacks](callbacks.md).",
    "Job.name": "What the run is called; by default the name of its file.",
    "Save.steps": "A checkpoint every so many steps.",
    "Save.epochs": "A checkpoint every so many epochs.",
    "Save.seconds": "A checkpoint after so many seconds, together with the next step.",
    "Save.keep_last": "How many of the newest are kept.",
    "Committed.epoch": "Its epoch, from 0.",
    "Committed.step": "Its place in the epoch, from 0.",
    "Committed.loss": "The mean loss over the global batch.",
    "Committed.samples": "Samples of the global batch.",
    "Data.train": "What is trained on.",
    "Data.validation": "What is evaluated after every epoch; None for nothing.",
    "Data.test": "What is evaluated once, at the end; None for nothing.",
    "World.rank": "This process's place among all.",
    "World.size": "How many processes there are.",
    "World.local_size": "Processes on the same host.",
    "World.node": "This host's place among the hosts.",
    "World.nodes": "How many hosts there are.",
    "World.host": "This host's name.",
    "Result.out": "The run's folder.",
    "Result.values": 'All that `result.json` says; `result["steps"]` is short for `result.values["steps"]`.',
    "Batch.ids": "Which samples of the data these are.",
    "Batch.fields": "Their data: a tensor, or a tuple or dict of tensors, as the source gives it.",
    "Batch.weight": "What the batch weighs: its samples, or what `weigh` says.",
    "Batch.epoch": "The epoch, from 0.",
    "Batch.step": "The step within the epoch, from 0.",
    "Batch.positions": "Where in the global batch its samples stand.",
}


class Silent(Exception):
    """Something public that no docstring describes."""


# ------------------------------------------------------------- reading the code


def said(cls: type) -> dict[str, str]:
    """The texts below the attributes of a class, in its body and in its `__init__`."""
    (tree,) = ast.parse(textwrap.dedent(inspect.getsource(cls))).body
    assert isinstance(tree, ast.ClassDef)
    bodies = [tree.body]
    bodies += [node.body for node in tree.body if isinstance(node, ast.FunctionDef) and node.name == "__init__"]
    found = {}
    for body in bodies:
        for node, after in pairwise(body):
            target = node.target if isinstance(node, ast.AnnAssign) else node.targets[0] if _assigns(node) else None
            if target is not None and isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant):
                found[ast.unparse(target).removeprefix("self.")] = inspect.cleandoc(str(after.value.value))
    return found


def _assigns(node: ast.stmt) -> bool:
    return isinstance(node, ast.Assign)


def told(cls: type, name: str) -> str:
    """What an attribute is: from the code, else from `WORDS`; both at once, or neither, is a mistake."""
    key = f"{cls.__name__}.{name}"
    in_code = said(cls).get(name)
    if in_code is not None and key in WORDS:
        raise Silent(f"{key} is explained in the code now: take it out of WORDS in docs/generate.py")
    if in_code is None and key not in WORDS:
        raise Silent(f"{key} is explained nowhere: write a docstring below it")
    USED.add(key)
    return in_code or WORDS[key]


USED: set[str] = set()


def doc(thing: Any) -> str:
    """A docstring; code that it shows by indenting becomes a block."""
    text = inspect.getdoc(thing)
    if not text:
        raise Silent(f"{thing} has no docstring")
    parts = []
    for part in text.split("\n\n"):
        is_code = part.startswith("    ")
        parts.append(f"```python\n{textwrap.dedent(part)}\n```" if is_code else part)
    return "\n\n".join(parts)


def signature(function: Callable[..., Any], name: str, *, method: bool = False) -> str:
    """A function's head as one would write it."""
    given = inspect.signature(function)
    parts: list[str] = []
    star = False
    for one in list(given.parameters.values())[int(method) :]:
        if one.kind is one.KEYWORD_ONLY and not star:
            star = True
            parts.append("*")
        star |= one.kind is one.VAR_POSITIONAL
        text = {one.VAR_POSITIONAL: "*", one.VAR_KEYWORD: "**"}.get(one.kind, "") + one.name
        text += f": {_type(one.annotation)}" if one.annotation is not one.empty else ""
        parts.append(text + (f" = {one.default!r}" if one.default is not one.empty else ""))
    end = f") -> {_type(given.return_annotation)}" if given.return_annotation is not given.empty else ")"
    line = f"{name}({', '.join(parts)}{end}"
    return line if len(line) <= WIDE else f"{name}(\n    " + ",\n    ".join(parts) + f",\n{end}"


def _type(annotation: Any) -> str:
    text = annotation if isinstance(annotation, str) else getattr(annotation, "__name__", str(annotation))
    return text.replace('"', "").replace("'", "")


def fields(cls: type) -> Iterator[list[str]]:
    """A row for each field of a dataclass: name, type, default, meaning."""
    for one in dataclasses.fields(cls):
        if one.default is not dataclasses.MISSING:
            default = f"`{_plain(one.default)}`"
        elif one.default_factory is not dataclasses.MISSING:
            default = f"`{_plain(one.default_factory())}`" if one.name != "host" else "this host"
        else:
            default = "needed"
        yield [f"`{one.name}`", f"`{_type(one.type)}`", default, told(cls, one.name)]


def _plain(value: Any) -> str:
    return f"{type(value).__name__}()" if dataclasses.is_dataclass(value) else repr(value)


# ------------------------------------------------------------- laying it out


def table(head: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    """A table; bars and line ends within a cell are made safe."""
    lines = [list(head), *([_cell(cell) for cell in row] for row in rows)]
    lines.insert(1, ["---"] * len(lines[0]))
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


def code(text: str) -> str:
    """A block of Python that shows a form."""
    return f"```py\n{text}\n```"


def function(thing: Any, name: str, level: int = 2) -> list[str]:
    """A function's section."""
    return [f"{'#' * level} {name.split('.')[-1]}", code(signature(thing, name)), doc(thing)]


def members(cls: type, *, attributes: Iterable[str] = (), leave_out: Iterable[str] = ()) -> list[str]:
    """The public face of a class: attributes and properties as a table, methods one by one."""
    public = {name: one for name, one in vars(cls).items() if not name.startswith("_") and name not in leave_out}
    rows = [[f"`{name}`", told(cls, name)] for name in attributes]
    rows += [[f"`{name}`", doc(one)] for name, one in public.items() if isinstance(one, property)]
    parts = [table(("attribute", "meaning"), rows)] if rows else []
    for name, one in public.items():
        if inspect.isfunction(one) or isinstance(one, classmethod):
            plain = one.__func__ if isinstance(one, classmethod) else one
            parts += [f"### {name}", code(signature(plain, name, method=True)), doc(plain)]
    return parts


# ------------------------------------------------------------- the pages


def cli() -> list[str]:
    """Every command with its arguments and options, from the app itself."""
    import typer

    from cordee.cli.main import app

    root: Any = typer.main.get_command(app)
    parts = [
        "# The command line",
        "`cordee COMMAND --help` says the same in the terminal. Commands end with an [exit code](exit-codes.md) of "
        "their own for every way in which they can end. Progress goes to standard error, results to standard output.",
    ]
    for path, command in _commands(root, "cordee"):
        if command is not root and not hasattr(command, "commands"):
            parts += [f"## {path}", _paragraphs(command.help)]
        elif command is root:
            parts += ["## cordee"]
        rows = [_option(one) for one in command.params]
        if rows:
            parts.append(table(("argument or option", "default", "meaning"), rows))
    return parts


def _commands(command: Any, path: str) -> Iterator[tuple[str, Any]]:
    yield path, command
    for name, inner in getattr(command, "commands", {}).items():
        yield from _commands(inner, f"{path} {name}")


def _paragraphs(text: str) -> str:
    return inspect.cleandoc(text)


def _option(one: Any) -> list[str]:
    is_option = one.param_type_name == "option"
    names = (*one.opts, *one.secondary_opts) if is_option else (one.name.upper(),)
    often = " May be given several times." if getattr(one, "multiple", False) or one.nargs == -1 else ""
    default = "needed" if one.required else "" if one.default in (None, False, ()) else f"`{_value(one.default)}`"
    if not one.help:
        raise Silent(f"{one.name} of the command line has no help")
    return [", ".join(f"`{name}`" for name in names), default, one.help + often]


def _value(default: Any) -> str:
    return f"{default:g}" if isinstance(default, float) else str(default)


def plan() -> list[str]:
    """The keys of a plan."""
    from cordee.core.plan import Plan, plan_keys

    parts = [
        "# Plans",
        "A plan says *how* to train here: which worker computes which samples (feed), how a replica lies over ranks "
        "(split), how replicas agree (sync), and what the devices do. On the command line it is `auto`, a YAML file, "
        "or `key=value,...`; from Python also a `cordee.Plan`. What is not given keeps its default, and `auto` is all "
        "defaults. A key or value that does not exist is refused with the nearest one that does.",
    ]
    titles = {"feed": "Feed", "split": "Split", "sync": "Sync", "device": "Device"}
    for part in dict.fromkeys(key.part for key in plan_keys()):
        rows = []
        for key in plan_keys():
            if key.part == part:
                rows.append([f"`{key.name}`", f"`{_written(key.default)}`", key.help, key.allowed])
        parts += [f"## {titles[part]}", table(("key", "default", "meaning", "allowed"), rows)]
    given = [{key.name: value} for key in plan_keys() for value in key.choices]
    served = [{"sync": "server", **one} for one in given if Plan.from_dict(one).faithfulness != "statistical"]
    lossy = [
        f"`{','.join(f'{name}={_written(value)}' for name, value in one.items())}`"
        for one in given + served
        if Plan.from_dict(one).faithfulness == "statistical"
    ]
    parts += [
        "`cordee plan` lists the keys in the terminal; `cordee plan PLAN` checks a plan and prints all of it.",
        "## How near to one process",
        "A plan is *exact* if it gives the same bits on any number of workers, as "
        "[`exact=true`](../how-to/exact.md) does; *same* if it gives what one process gives, up to rounding and the "
        f"model's own random draws; and *statistical* otherwise; `run.json` says which. These make it statistical: "
        f"{', '.join(lossy) or 'none'}.",
    ]
    return parts


def engines() -> list[str]:
    """The settings of every engine."""
    from importlib import import_module

    from cordee.runtime.engines.choice import ENGINES

    parts = [
        "# Engines",
        "Settings of `--engine-set name=value`, or `engine_settings={name: value}`, by engine. What engines do, and "
        "which does what: [train on a cluster](../how-to/engines.md).",
    ]
    for name, module in ENGINES.items():
        rows = []
        for one in dataclasses.fields(import_module(module).Settings):
            if not one.metadata.get("help"):
                raise Silent(f"setting {one.name} of engine {name} has no help")
            rows.append(
                [f"`{one.name}`", f"`{_written(one.default)}`" if one.default != "" else "", one.metadata["help"]]
            )
        parts += [f"## {name}", table(("setting", "default", "meaning"), rows)]
    return parts


def _written(value: Any) -> str:
    if isinstance(value, (tuple, list)):
        return ":".join(map(str, value)) or "none"
    return str(value).lower() if isinstance(value, bool) else f"{value:g}" if isinstance(value, float) else str(value)


def job() -> list[str]:
    """Job, Stop and Save."""
    from cordee.train.job import Job, Save, Stop

    head = ("field", "type", "default", "meaning")
    parts = ["# Jobs", "How they are used, with examples: [jobs, data and metrics](../how-to/jobs.md)."]
    for cls in (Job, Stop, Save):
        parts += [f"## cordee.{cls.__name__}", doc(cls), table(head, fields(cls))]
    parts += ["## Methods of a job"]
    for name in ("replace",):
        one = getattr(Job, name)
        parts += [f"### {name}", code(signature(one, f"job.{name}", method=True)), doc(one)]
    return parts


def session() -> list[str]:
    """The session."""
    from cordee.runtime.join import session as door
    from cordee.train import session as module

    return [
        "# The session",
        "For a training loop of your own: [how to](../how-to/own-loop.md).",
        *function(door, "cordee.session"),
        "## Session",
        doc(module.Session),
        *members(module.Session),
        "## Wishes",
        doc(module.Wishes),
        table(("field", "type", "default", "meaning"), fields(module.Wishes)),
    ]


def data() -> list[str]:
    """Where samples come from."""
    import cordee.data as module
    from cordee.feed.batch import Batch
    from cordee.feed.chain import Chain
    from cordee.feed.steps.methods import OnColumns, OnRows
    from cordee.feed.view import Viewed

    names = [name for name in vars(module) if not name.startswith("_") and name not in ("Data", "as_data", "as_source")]
    functions = [name for name in sorted(names) if inspect.isfunction(getattr(module, name))]
    parts = ["# Data", "Examples: [jobs, data and metrics](../how-to/jobs.md#data)."]
    for name in functions:
        parts += function(getattr(module, name), f"cordee.data.{name}")
    for kind in (module.Data, module.Dialect, module.Sent, module.Gathered):
        parts += [f"## {kind.__name__}", doc(kind), table(("field", "type", "default", "meaning"), fields(kind))]
    parts += ["## Chain", doc(Chain), "How to use it: [from raw files to batches](../how-to/data.md)."]
    inner = ("then", "viewed", "looked", "fitted_steps", "places", "raw", "columns", "labels")
    for kind in (OnRows, OnColumns, Viewed, Chain):
        parts += members(kind, leave_out=inner)
    parts += ["## Batch", doc(Batch)]
    parts += members(Batch, attributes=("ids", "fields", "weight", "epoch", "step", "positions", "borrowed", "last"))
    parts += ["## What else is taken as data"]
    for name in ("as_data", "as_source"):
        parts += function(getattr(module, name), f"cordee.data.{name}", level=3)
    return parts


def metrics() -> list[str]:
    """Metric functions."""
    import cordee.metrics as module
    from cordee.train import metrics as inner

    parts = ["# Metrics", doc(inner), "Examples: [jobs, data and metrics](../how-to/jobs.md#metrics)."]
    for name in sorted(name for name in vars(module) if inspect.isfunction(getattr(module, name))):
        parts += function(getattr(module, name), f"cordee.metrics.{name}")
    return parts


def callbacks() -> list[str]:
    """Callbacks and what they are given."""
    from cordee.train.callbacks import Callback
    from cordee.train.ledger import Committed

    return [
        "# Callbacks",
        "## cordee.Callback",
        doc(Callback),
        "They observe: what one worker's callback does to the model, the others do not know of. An exception in a "
        "callback ends the run, as any exception of your code does ([exit code 20](exit-codes/20.md)).",
        *members(Callback),
        "## Committed",
        doc(Committed) + " `on_step` and `Stop(when=...)` are given one.",
        table(("field", "type", "default", "meaning"), fields(Committed)),
        *members(Committed),
    ]


def python() -> list[str]:
    """What `import cordee` offers."""
    import cordee
    from cordee.core.errors import CordeeError, WorkerFailed, all_errors
    from cordee.runtime.api import Result

    pages = {"Job": "job.md", "Stop": "job.md", "Save": "job.md", "Callback": "callbacks.md", "session": "session.md"}
    pages |= {
        "split": "#split",
        "data": "data.md",
        "metrics": "metrics.md",
        "Plan": "#plan",
        "World": "#world",
        "train": "#train",
    }
    pages |= {
        "load": "#load",
        "predict": "#predict",
        "gather": "#gather",
        "errors": "#errors",
        "Batch": "data.md#batch",
    }
    modules = {"data": "Where samples come from.", "metrics": "What can be measured.", "errors": "What can go wrong."}
    modules["split"] = "A product of matrices over workers."
    names = [name for name in cordee.__all__ if name != "__version__"]
    if homeless := sorted(set(names) - set(pages)):
        raise Silent(f"cordee.{homeless[0]} has no place in the reference: give it one in docs/generate.py")
    rows = [
        [f"[`cordee.{name}`]({pages[name]})", modules.get(name) or doc(getattr(cordee, name)).split("\n")[0]]
        for name in names
    ]
    errors = [[f"`{one.__name__}`", f"[{one.code}](exit-codes/{one.code}.md)", doc(one)] for one in all_errors()]
    head = ("field", "type", "default", "meaning")
    return [
        "# Python",
        "`import cordee` imports nothing heavy by itself; names are looked up when they are first used.",
        table(("name", "what it is"), rows),
        *function(cordee.train, "cordee.train"),
        "## Result",
        doc(Result),
        table(head, fields(Result)),
        *members(Result),
        *function(cordee.load, "cordee.load"),
        *function(cordee.predict, "cordee.predict"),
        *function(cordee.gather, "cordee.gather"),
        "## split",
        *function(cordee.split.matmul, "cordee.split.matmul", level=3),
        f"It gives a `Product`: {doc(cordee.split.Product)} `value` is the matrix, `bytes_sent` what this worker has "
        "sent to others for it.",
        "## Plan",
        doc(cordee.Plan) + " Its keys: [plans](plan.md).",
        *members(cordee.Plan),
        "## World",
        doc(cordee.World),
        table(head, fields(cordee.World)),
        *members(cordee.World),
        "## errors",
        f"All are subclasses of `cordee.errors.CordeeError`: {doc(CordeeError)} `WorkerFailed` also has "
        f"{_listed(list(inspect.signature(WorkerFailed).parameters)[2:])}.",
        table(("error", "exit code", "meaning"), errors),
    ]


def _listed(names: list[str]) -> str:
    return ", ".join(f"`{name}`" for name in names[:-1]) + f" and `{names[-1]}`"


def events() -> list[str]:
    """The records of events.jsonl."""
    from cordee.core.events import EVENTS

    parts = [
        "# Events",
        "`events.jsonl` in a run's folder holds what happened, one JSON object a line, in the order in which the "
        "launcher learnt of it. Each record has `event`, its name, and `time`, seconds since 1970, besides the fields "
        "below. NaN and infinity are written as null. A run that goes on with `--resume` appends to the file; steps "
        "beyond the checkpoint that it goes on from are done again, and stand there twice: the later record counts.",
        '```py\nimport json\n\nwith open("runs/one/events.jsonl") as file:\n'
        '    steps = [event for event in map(json.loads, file) if event["event"] == "step"]\n'
        'losses = {event["step"]: event["loss"] for event in steps}\n```',
    ]
    for kind, one in EVENTS.items():
        names = zip(one.__struct_fields__, one.__struct_encode_fields__, strict=True)
        rows = ([f"`{written}`", told(one, name)] for name, written in names if name != "time")
        parts += [f"## {kind}", doc(one), table(("field", "meaning"), rows)]
    return parts


def exit_codes() -> list[str]:
    """The index of the pages in `exit-codes/`."""
    from cordee.core.errors import CordeeError, all_errors

    rows = [["0", "", "success", "The run did what was asked, also when workers died and the others finished it."]]
    for one in (CordeeError, *all_errors()):
        page = f"exit-codes/{one.code}.md"
        meaning = "Something that has no number of its own." if one is CordeeError else doc(one)
        rows.append([f"[{one.code}]({page})", f"`{one.__name__}`", one.title, meaning])
    return [
        "# Exit codes",
        "Every way in which a command can end has a number of its own, so that a script or a scheduler can tell them "
        "apart. From Python the same endings are exceptions of `cordee.errors`, each with its `code`. The last line on "
        "the terminal is the message: it says what was given, what was expected and what to do.",
        table(("code", "`cordee.errors.`", "in short", "meaning"), rows),
    ]


def models() -> list[str]:
    """Which model trains under which plan: as `benchmarks/products.py` has recorded it."""
    recorded: dict[str, Any] = json.loads(PRODUCTS.read_text(encoding="utf-8"))
    known = {name: words for part in recorded.values() for name, words in part["models"].items()}
    parts = [
        "# Which model trains under which plan",
        "Each of these models, as it is, was trained under each plan for 20 steps of AdamW with clipping, in fp64, and "
        "compared with one process on the same device:",
        table(("model", "what it is"), ([f"`{name}`", words] for name, words in known.items())),
        "**same**: every loss within 1e-10 (relative), every parameter and buffer within 1e-8 of one process, the same "
        "samples in every step. **differs**: the largest differences of a loss (relative) and of a parameter. "
        "**refused**: before the first step; the number leads to the reason below the table. `data=2` stands for two "
        "replicas: it is no key of a plan, but follows from the number of workers. What differs under `data=2` alone, "
        "where every worker has the whole model, does not come from a split. A model with BatchNorm has "
        "`micro_batches=1` under `pipeline=2`, where there is one replica.",
        "[`benchmarks/products.py`](../../benchmarks/products.py) trains them; "
        "[its record](../../benchmarks/results/products.json) has the figures of every cell.",
        _rounding(),
    ]
    titles = {"cpu": "On CPUs", "cuda": "On one GPU that all workers share"}
    for device, part in recorded.items():
        parts += [f"## {titles[device]}", *_products(part)]
    return parts


def _rounding() -> str:
    """Why Qwen3 differs: as `benchmarks/rounding.py` has recorded it."""
    found: dict[str, Any] = json.loads(ROUNDING.read_text(encoding="utf-8"))

    def most(norms: str) -> str:
        parts = found[f"norms {norms}"].values()
        return ", ".join(f"{max(part[key] for part in parts):.0e}" for key in ("loss", "parameter"))

    return (
        "Where Qwen3 differs, the cause is in the model: its norms convert to float32, whatever the model's format. "
        "Numbers that differ in the last bit of fp64, as they do where parts of a batch have another shape, may become "
        f"neighbours in float32. One process without a plan differs by as much ({most('as they are')}) where a loop by "
        f"hand computes each batch in parts, and by {most('in fp64')} with norms that stay in fp64 "
        f"([`benchmarks/rounding.py`](../../benchmarks/rounding.py), {found['date']}). The norms of Llama convert too; "
        "in its 20 steps that showed nowhere."
    )


def _products(part: dict[str, Any]) -> Iterator[str]:
    """One device: when and where, the table, and the reasons that its cells name by number."""
    for run in part["runs"]:
        yield f"Recorded {', '.join(run.values())}."
    rows, reasons = part["cells"], dict[str, int]()
    plans = {plan: cell["workers"] for row in rows.values() for plan, cell in row.items()}

    def said(cell: dict[str, Any] | None) -> str:
        if cell is None:
            return ""
        if "reason" in cell:
            plain = re.sub(r"^plan \S+ cannot run on \d+ worker\(s\): ", "", cell["reason"])
            return f"{cell['verdict']} ({reasons.setdefault(plain, len(reasons) + 1)})"
        return "same" if cell["verdict"] == "same" else f"differs: {cell['loss']:.0e}, {cell['parameter']:.0e}"

    lines = [
        [f"`{plan}`", str(workers), *(said(row.get(plan)) for row in rows.values())] for plan, workers in plans.items()
    ]
    yield table(("plan", "workers", *(f"`{name}`" for name in rows)), lines)
    yield "\n".join(f"{number}. {reason}" for reason, number in reasons.items())


PAGES: dict[str, Callable[[], list[str]]] = {
    "cli.md": cli,
    "plan.md": plan,
    "job.md": job,
    "session.md": session,
    "data.md": data,
    "metrics.md": metrics,
    "callbacks.md": callbacks,
    "python.md": python,
    "events.md": events,
    "exit-codes.md": exit_codes,
    "models.md": models,
    "engines.md": engines,
}


def main(arguments: list[str]) -> None:
    """Write the pages, or with `--check` name those that are out of date."""
    if arguments not in ([], ["--check"]):
        sys.exit("usage: python docs/generate.py [--check]")
    try:
        pages = {name: "\n\n".join([NOTE, *page()]) + "\n" for name, page in PAGES.items()}
    except Silent as silence:
        sys.exit(str(silence))
    if idle := sorted(set(WORDS) - USED):
        sys.exit(f"WORDS in docs/generate.py explains what is not there: {', '.join(idle)}")
    old = [name for name, text in pages.items() if _read(REFERENCE / name) != text]
    if arguments and old:
        sys.exit(f"out of date: {', '.join(f'docs/reference/{name}' for name in old)}; run python docs/generate.py")
    for name in old:
        (REFERENCE / name).write_text(pages[name], encoding="utf-8")
        sys.stdout.write(f"wrote docs/reference/{name}\n")


def _read(path: Path) -> str:
    return path.read_text(encoding="utf-8") if path.is_file() else ""


if __name__ == "__main__":
    main(sys.argv[1:])
