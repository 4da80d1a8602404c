"""`cordee data build` and `cordee data show`: raw files become a store, and what is in one."""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import inspect
import json
import sys
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from cordee.cli.options import AsJson, TokenFile, parse_settings, python_file
from cordee.core.errors import DataError, Interrupted, UsageError
from cordee.core.text import plain
from cordee.core.words import amount, did_you_mean, plural

if TYPE_CHECKING:
    from cordee.feed.cache.far import FarStore
    from cordee.feed.chain import Chain
    from cordee.feed.store.layout import Manifest
    from cordee.feed.store.opened import Store

FORMS = {
    "csv": (".csv", ".tsv", ".csv.gz", ".tsv.gz", ".csv.bz2", ".csv.zst"),
    "parquet": (".parquet", ".pq"),
    "tfrecord": (".tfrecord", ".tfrecords", ".tfrecord.gz"),
    "lines": (".txt", ".txt.gz", ".jsonl"),
    "array_files": (".npy", ".npz"),
    "images": (".jpg", ".jpeg", ".png"),
}
"""Functions of `cordee.data`, and how names of their files end."""
_NAMES = ("chain", "data")
_WIDTH = 120
_LONGEST = 40


def build(
    source: Annotated[
        str, typer.Argument(help="Files: a path, pattern, folder or URL; or file.py:chain.", show_default=False)
    ],
    out: Annotated[Path, typer.Argument(help="Folder of the store, a new one.", show_default=False)],
    label: Annotated[str | None, typer.Option(help="The column that a model is to predict.")] = None,
    form: Annotated[
        str | None,
        typer.Option(
            metavar="<form>", help="csv, parquet, ...: a function of cordee.data. Default: by names of files."
        ),
    ] = None,
    set_: Annotated[
        list[str] | None, typer.Option("--set", metavar="<name=value>", help="For the reader, such as on_error=skip.")
    ] = None,
    split: Annotated[
        str | None, typer.Option(metavar="<ratios>", help="Of train, validation and test: 0.8,0.1,0.1.")
    ] = None,
    processes: Annotated[
        int | None,
        typer.Option(min=0, help="Default: none for CSV and Parquet without functions of your own, else one per core."),
    ] = None,
    replace: Annotated[bool, typer.Option("--replace", help="Replace another store in that folder.")] = False,
) -> None:
    """Turn files, or a chain, into a store that trainings map into memory.

    A build that was ended goes on where it stopped, if the same command is given again.
    """
    from cordee.feed.chain import Chain
    from cordee.feed.store.opened import open_store

    settings = parse_settings(set_)
    in_file = source.partition(":")[0].endswith(".py")
    with _importing():
        chain = _chain_of_file(source) if in_file else _chain_of(source, form, settings)
    if not isinstance(chain, Chain):
        raise UsageError(f"{source} is {type(chain).__name__}: expected a chain, such as cordee.data.csv(...) gives")
    if in_file and settings:
        raise UsageError(f"--set is for readers of files, and {source} says itself what it reads: change it there")
    if label is not None:
        chain = chain.labelled(label)
    if split is not None:
        if chain.divided:
            raise UsageError(f"--split {split}: {source} is split already; leave the option out, or change it there")
        chain = chain.split(*_ratios(split))
    try:
        chain.build(out, processes=processes, replace=replace)
    except KeyboardInterrupt:
        raise Interrupted(
            f"interrupted; what is finished stays in {out}, and the same command goes on with it"
        ) from None
    _print_counts(str(out), open_store(out).manifest)


def show(
    out: Annotated[str, typer.Argument(help="Folder of a store, or its URL.", show_default=False)],
    rows: Annotated[int, typer.Option(min=0, help="So many of the first rows are shown.")] = 3,
    verify: Annotated[bool, typer.Option("--verify", help="Read all of it, and compare with its checksums.")] = False,
    token_file: TokenFile = None,
    as_json: AsJson = False,
) -> None:
    """Show columns, counts, statistics and the first rows of a store; of one at a URL, fetch no more than that."""
    from cordee.feed.cache.settings import Cache
    from cordee.feed.exchange.stored import far_store
    from cordee.feed.store.opened import Store, open_store

    store = far_store(out, Cache(disk=0), token_file) if "://" in out else open_store(out)
    if verify:
        if not isinstance(store, Store):
            raise UsageError(f"--verify reads files of a folder, and {out} is a URL: give it where the files are")
        store.verify()
    manifest = store.manifest
    if as_json:
        told: dict[str, Any] = {
            "columns": {name: str(kind) for name, kind in manifest.schema.items()},
            "rows": {name: manifest.rows(name) for name in manifest.sets},
            "bytes": _nbytes(manifest),
            "shards": {name: len(shards) for name, shards in manifest.sets.items()},
            "skipped": manifest.skipped,
            "skipped_in": manifest.skipped_in,
            "statistics": manifest.statistics,
            "fingerprint": manifest.fingerprint,
            "verified": verify,
        }
        print(json.dumps(told, allow_nan=False))
        return
    _print_counts(out, manifest)
    _tables(manifest, {name: _first(store, name, min(rows, manifest.rows(name))) for name in manifest.sets})
    if verify:
        print("every file is as it was written")


def _chain_of(source: str, form: str | None, settings: Mapping[str, str]) -> Chain:
    """A chain over files, by what their names end with."""
    data = importlib.import_module("cordee.data")
    known = [name for name, one in vars(data).items() if inspect.isfunction(one) and "what" in _parameters(one)]
    name = form or _form_of(source)
    if name not in known:
        near = did_you_mean(name, known)
        raise UsageError(f"--form {name} is not known.{near} Give one of --form {', '.join(known)}")
    function = getattr(data, name)
    parameters = _parameters(function)
    given = {}
    for key, text in settings.items():
        if key not in parameters or key in ("what", "label"):
            can = ", ".join(one for one in parameters if one not in ("what", "label"))
            raise UsageError(f"--set {key}: {name} has no such option.{did_you_mean(key, parameters)} It has {can}")
        given[key] = _value(text, str(parameters[key].annotation))
    chain: Chain = function(source, **given)
    return chain


def _form_of(source: str) -> str:
    """The function that reads what lies there, by how names of files end; text files beside others say nothing."""
    from cordee.feed.places import resolve

    named = next((name for name, endings in FORMS.items() if source.lower().endswith(endings)), None)
    if named is not None:
        return named
    files = [place.name.lower() for place in resolve(source)]
    counts = Counter(name for one in files for name, endings in FORMS.items() if one.endswith(endings))
    if len(counts) > 1:  # such as a README.txt
        del counts["lines"]
    if len(counts) == 1:
        return next(iter(counts))
    holds = " and ".join(f"{plural(count, 'file')} for {name}" for name, count in counts.items())
    raise UsageError(
        f"{source}: {f'it holds {holds}' if counts else 'the name does not say what it holds'}. Give one of --form "
        f"{', '.join(FORMS)}, ...; or a Python file with a chain, as file.py:chain"
    )


def _ratios(text: str) -> tuple[float, ...]:
    """Of `--split`; sets that are not named get nothing."""
    try:
        ratios = tuple(float(one) for one in text.split(","))
    except ValueError:
        ratios = ()
    if not 1 <= len(ratios) <= 3:
        raise UsageError(f"--split {text}: ratios of train, validation and test were expected, such as 0.8,0.1,0.1")
    return (*ratios, 0.0, 0.0)[:3]


def _parameters(function: Any) -> Mapping[str, inspect.Parameter]:
    return inspect.signature(function).parameters


def _value(text: str, hint: str) -> Any:
    """What a text means for a parameter: JSON where that is asked for, a list with commas, or the text."""
    if hint.startswith("str"):
        return text
    with contextlib.suppress(ValueError):
        return json.loads(text)
    return text.split(",") if "Sequence" in hint else text


def _chain_of_file(source: str) -> Any:
    """The chain that a Python file defines under this name, or under one of `_NAMES`."""
    from cordee.core.interpreter import search_in

    file, _, name = source.partition(":")
    path = python_file(Path(file))
    spec = importlib.util.spec_from_file_location("cordee_chain", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["cordee_chain"] = module
    search_in([path.resolve().parent])
    try:
        spec.loader.exec_module(module)
    except SyntaxError as error:
        raise DataError(f"{error.filename}, line {error.lineno}: {error.msg}") from error
    names = (name,) if name else _NAMES
    found = next((getattr(module, one) for one in names if hasattr(module, one)), None)
    if found is None:
        there = [one for one, value in vars(module).items() if type(value).__name__ == "Chain"]
        hint = f"; it has {', '.join(there)}: {file}:{there[0]}" if there else ""
        raise UsageError(f"{path} defines no {' or '.join(names)}{hint}")
    return found() if inspect.isfunction(found) else found


@contextlib.contextmanager
def _importing() -> Any:
    """The user's file may print; what it raises is the user's."""
    arguments, sys.argv = sys.argv, sys.argv[:1]
    try:
        yield
    finally:
        sys.argv = arguments


# ------------------------------------------------------------- printing


def _print_counts(out: str, manifest: Manifest) -> None:
    from cordee.feed.notes import skipped_note

    counts = ", ".join(f"{name} {plural(manifest.rows(name), 'row')}" for name in manifest.sets)
    print(plain(f"{out}: {counts}; {amount(_nbytes(manifest))}"))
    for note in skipped_note(manifest.left_out):
        print(plain(note))


def _nbytes(manifest: Manifest) -> int:
    return sum(file.size for shards in manifest.sets.values() for one in shards for file in one.files)


def _first(store: Store | FarStore, name: str, count: int) -> dict[str, list[Any]]:
    """The first rows of a set, by column; of a far one whose rows cannot be fetched one by one, none."""
    import numpy as np

    from cordee.feed.store.opened import Store, StoreSource

    ragged = any(kind.ragged for kind in store.manifest.schema.values())
    if not count or (ragged and not isinstance(store, Store)):
        return {}
    source, ids = store.sets[name], np.arange(count)
    columns = source.rows(ids) if isinstance(source, StoreSource) else source.gather(ids)
    assert isinstance(columns, dict)
    return {one: column.tolist() for one, column in columns.items()}


def _tables(manifest: Manifest, first: Mapping[str, Mapping[str, list[Any]]]) -> None:
    from rich import box
    from rich.console import Console
    from rich.table import Table

    console = Console(markup=False, highlight=False, width=None if sys.stdout.isatty() else _WIDTH)
    figures = ("count", "missing", "least", "most", "mean", "std", "longest", "distinct")
    table, parts = Table(box=box.SIMPLE_HEAD), []
    for head in ("column", "holds", *figures):
        table.add_column(head, justify="left" if head in ("column", "holds") else "right")
    for name, kind in manifest.schema.items():
        told = manifest.statistics.get(name, {})
        table.add_row(plain(name), str(kind), *(_figure(told.get(one)) for one in figures))
        if "mean_of_rows" in told:
            parts.append(f"{plain(name)}: {told['mean_of_rows']:,} of {told['count']:,} rows")
    console.print(table)
    if parts:
        console.print(f"mean and std of wide columns are of a part of the rows: {'; '.join(parts)}")
    for name, columns in first.items():
        if not columns:
            continue
        samples = Table(box=box.SIMPLE_HEAD, title=f"first rows of {name}", title_justify="left")
        for each in columns:
            samples.add_column(plain(each))
        for row in zip(*columns.values(), strict=True):
            samples.add_row(*map(_short, row))
        console.print(samples)


def _figure(value: Any) -> str:
    return "" if value is None else f"{value:.4g}" if isinstance(value, float) else str(value)


def _short(value: Any) -> str:
    text = " ".join(plain(str(value)).split())
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 3]}..."
