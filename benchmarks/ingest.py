"""From CSV and Parquet files to a store on disk, beside a bare pyarrow that reads and writes the same columns.

Bare: `pyarrow.csv.read_csv` or `parquet.read_table` with all cores, file by file, then `feather.write_feather` without
compression. Ours: `cordee data build`, which also checks, counts, sums up statistics and checksums, and writes dates
and offsets of texts in 8 bytes instead of 4; `store alone` is ours without statistics and checksums. None waits for the
disk. All in one run, in turns; each row has medians of the ratios within a turn, the first with its 95% interval. At
the end a set is built in a process of its own, and the memory of that process and its children is watched: it may be
far smaller than the set.

What was written is emptied after each turn, and removed at the end of all: for each new file, ext4 looks through all
inodes that were freed in the last minutes, which a build that does not follow others never meets.

    python benchmarks/ingest.py [--rounds 9] [--megabytes 256] [--large 2048] [--record]
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import psutil
import pyarrow as pa
from peers.machine import described
from pyarrow import csv, feather, parquet

from cordee.feed.places import resolve
from cordee.feed.sources.csv import CsvReader
from cordee.feed.sources.parquet import ParquetReader
from cordee.feed.store.build import build
from cordee.feed.store.opened import open_store
from cordee.feed.store.recipe import Recipe
from cordee.feed.store.statistics import Summary

RESULTS = Path(__file__).parent / "results" / "ingest.json"
WORDS = ["alpha", "beta", "gamma delta", "epsilon, and more", "zeta"]


def table(rows: int, seed: int) -> pa.Table:
    """Eight floats, three whole numbers, a text and a date."""
    draw = np.random.default_rng(seed)
    columns: dict[str, Any] = {f"f{at}": draw.standard_normal(rows).astype(np.float32) for at in range(8)}
    columns |= {f"i{at}": draw.integers(0, 10**6, rows) for at in range(3)}
    columns["word"] = pa.array(WORDS).take(pa.array(draw.integers(0, len(WORDS), rows)))
    columns["day"] = pa.array(draw.integers(0, 20_000, rows).astype("int32"), pa.date32())
    return pa.table(columns)


def write(folder: Path, form: str, files: int, size: int) -> list[Path]:
    """So many files with about so many bytes in all."""
    folder.mkdir(parents=True)
    rows, paths = size // files // (120 if form == "csv" else 70), []
    for number in range(files):
        paths.append(folder / f"{number:03}.{form}")
        if form == "csv":
            csv.write_csv(table(rows, number), paths[-1])
        else:
            parquet.write_table(table(rows, number), paths[-1])
    return paths


def bare(paths: list[Path], out: Path) -> None:
    """All of pyarrow's own."""
    out.mkdir()
    for path in paths:
        found = csv.read_csv(path) if path.suffix == ".csv" else parquet.read_table(path)
        feather.write_feather(found, out / path.stem, compression="uncompressed")


def ours(paths: list[Path], out: Path) -> None:
    """A store of the same rows."""
    reader = CsvReader() if paths[0].suffix == ".csv" else ParquetReader()
    build(Recipe(reader, resolve(list(paths))), out, durable=False)


def alone(paths: list[Path], out: Path) -> None:
    """A store of the same rows, whose manifest says nothing of them."""
    with patch("cordee.feed.store.span.summary_of", lambda *_: Summary()), patch("zlib.crc32", lambda *_: 0):
        ours(paths, out)


def seconds(work: Callable[[list[Path], Path], None], paths: list[Path], out: Path) -> float:
    """How long it takes; what it wrote is emptied."""
    out.mkdir(exist_ok=True)
    folder = out / str(len(list(out.iterdir())))
    began = time.perf_counter()
    work(paths, folder)
    took = time.perf_counter() - began
    for path in folder.rglob("*"):
        if path.is_file():
            os.truncate(path, 0)
    return took


def interval(ratios: list[float]) -> tuple[float, float]:
    """Of their median, by drawing from them again and again."""
    draw = random.Random(0)
    medians = sorted(statistics.median(draw.choices(ratios, k=len(ratios))) for _ in range(2000))
    return medians[50], medians[-51]


def measured(name: str, paths: list[Path], out: Path, rounds: int) -> dict[str, Any]:
    """One row of the table."""
    works = [bare, ours, alone]
    for work in works:
        seconds(work, paths, out)
    turns = []
    for number in range(rounds):
        turns.append({work: seconds(work, paths, out) for work in (works if number % 2 else works[::-1])})
    ratios = [turn[bare] / turn[ours] for turn in turns]
    low, high = interval(ratios)
    size = sum(path.stat().st_size for path in paths)
    rate = {work: round(size / statistics.median(turn[work] for turn in turns) / 1e6) for work in works}
    return {
        "files": f"{len(paths)} {name}, {size / 1e6:.0f} MB",
        "MB/s": rate[ours],
        "bare MB/s": rate[bare],
        "share of bare pyarrow": round(statistics.median(ratios), 2),
        "interval": f"{low:.2f} to {high:.2f}",
        "store alone": round(statistics.median(turn[bare] / turn[alone] for turn in turns), 2),
    }


def memory(paths: list[Path], out: Path) -> dict[str, Any]:
    """Build in another process, and watch what memory it and its children have of their own (PSS)."""
    process = psutil.Popen([sys.executable, __file__, "--build", str(out), *map(str, paths)])
    most, alone = 0, 0
    while process.poll() is None:
        found = []
        for one in (process, *process.children(recursive=True)):
            try:
                found.append(one.memory_full_info())
            except psutil.Error:
                continue
        most = max(most, sum(one.pss for one in found))
        alone = max(alone, max((one.rss for one in found), default=0))
        time.sleep(0.05)
    if process.returncode:
        raise SystemExit(f"the build ended with {process.returncode}")
    store = open_store(out)
    return {
        "files": f"{len(paths)}, {sum(path.stat().st_size for path in paths) / 1e6:.0f} MB",
        "rows": store.manifest.rows("train"),
        "store MB": round(sum(one.stat().st_size for one in out.rglob("*.npy")) / 1e6),
        "peak MB, all processes": round(most / 1e6),
        "peak MB, largest process": round(alone / 1e6),
    }


def main() -> None:
    """Measure, print and record."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--megabytes", type=int, default=256)
    parser.add_argument("--large", type=int, default=2048)
    parser.add_argument("--record", action="store_true")
    parser.add_argument("--build", nargs="+", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.build:
        ours([Path(one) for one in options.build[1:]], Path(options.build[0]))
        return
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        for form in ("csv", "parquet"):
            for files in (16, 1):
                paths = write(Path(folder, f"{form}-{files}"), form, files, options.megabytes * 10**6)
                rows.append(measured(form, paths, Path(folder, f"out-{form}-{files}"), options.rounds))
                print(rows[-1], flush=True)
                shutil.rmtree(paths[0].parent)
        paths = write(Path(folder, "large"), "csv", 8, options.large * 10**6)
        large = memory(paths, Path(folder, "out"))
        print(large, flush=True)
    if options.record:
        load = [round(one, 1) for one in psutil.getloadavg()]
        result = {**described("pyarrow"), "load": load, **vars(options), "rows": rows, "memory": large}
        result.pop("build")
        RESULTS.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
