"""How often a cache of blocks hits, beside the best possible choice and LRU: `python benchmarks/caching.py`.

Blocks of equal size, budgets of 10, 30 and 60% of the set, five epochs from a cold start. The optimum is computed here,
offline, by Belady's rule: of the blocks that are there and the one that comes, the one goes that is needed last. Hit
rates depend on the order of the data alone, not on the machine or its load.
"""

from __future__ import annotations

import argparse
import datetime
import json
import platform
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from cordee.feed.cache.levels import Levels
from cordee.feed.cache.reader import Reader
from cordee.feed.cache.settings import Cache
from cordee.feed.coming import Coming
from cordee.feed.order import Order
from cordee.feed.permute import Ids
from cordee.feed.share import Share, Shares

BLOCKS, ROWS, NBYTES, HEAD = 200, 64, 256, 24
"""How many blocks, rows of each, and bytes: what is in them makes no difference. A block's file has a head."""
BATCH, EPOCHS = 128, 5
BUDGETS = (10, 30, 60)
RESULTS = Path(__file__).parent / "results" / "caching.json"


@dataclass(frozen=True)
class Nothing:
    """Blocks that cost nothing to fetch."""

    key: str = "benchmark"
    blocks: int = BLOCKS

    def nbytes(self, block: int) -> int:
        """All alike."""
        return NBYTES

    def fetch(self, block: int, into: NDArray[np.uint8]) -> None:
        """Leave the memory as it is."""


def block_of(ids: Ids) -> Ids:
    """The blocks of samples."""
    return ids // ROWS


def walk(cache: Cache, coming: Coming) -> tuple[list[int], Levels]:
    """Read some epochs through the levels: the blocks in the order in which they were read, and the levels."""
    levels, read = Levels(cache, Nothing()), []
    reader = Reader(levels, coming, block_of)
    for _ in range(EPOCHS * coming.order.steps):
        for block in reader.blocks(1):
            read.append(block.number)
            del block
    reader.close()
    return read, levels


def optimum(read: Sequence[int], places: int) -> int:
    """The most hits that are possible, by Belady's rule, from the whole sequence of reads."""
    later: dict[int, int] = {}
    following = [0] * len(read)
    for at in range(len(read) - 1, -1, -1):
        following[at] = later.get(read[at], len(read) + read[at])
        later[read[at]] = at
    there: dict[int, int] = {}
    hits = 0
    for at, block in enumerate(read):
        hits += block in there
        there[block] = following[at]
        if len(there) > places:
            del there[max(there, key=there.__getitem__)]
    return hits


def row(name: str, coming: Coming, percent: int) -> dict[str, object]:
    """Hit rates of one order at one budget."""
    places = BLOCKS * percent // 100
    read, levels = walk(Cache(memory=places * NBYTES, ahead=0, disk=0), coming)
    same, lru = walk(Cache(memory=places * NBYTES, ahead=0, disk=0, policy="lru"), coming)
    assert same == read
    near = places // 3
    with tempfile.TemporaryDirectory() as folder:
        disk = (places - near) * (NBYTES + HEAD)
        both, two = walk(Cache(memory=near * NBYTES, ahead=0, disk=disk, folder=folder), coming)
        assert both == read
    return {
        "order": name,
        "budget_percent": percent,
        "reads": len(read),
        "hits": levels.counters.memory_hits,
        "hits_optimum": optimum(read, places),
        "hits_memory_and_disk": two.counters.memory_hits + two.counters.disk_hits,
        "hits_lru": lru.counters.memory_hits,
    }


def main() -> None:
    """Print the table, and write it where asked to."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--record", action="store_true", help=f"write {RESULTS.name}")
    record = parser.parse_args().record
    shapes = {
        "shuffle=full": ("full", (0,)),
        "shuffle=full, one of 4 workers": ("full", (0, 1, 2, 3)),
        "shuffle=blocks": ("blocks", (0,)),
        "shuffle=none": ("none", (0,)),
    }
    rows = []
    print(f"{'order':32} budget    reads  optimum  ours     memory+disk  LRU")
    for name, (shuffle, owners) in shapes.items():
        order = Order(BLOCKS * ROWS, BATCH, seed=1, shuffle=shuffle, block=ROWS, window=16)
        for percent in BUDGETS:
            found = row(name, Coming(order, Shares(((0, Share()),)), owners, 0), percent)
            rows.append(found)
            reads = int(str(found["reads"]))
            rates = [int(str(found[f"hits{one}"])) / reads for one in ("_optimum", "", "_memory_and_disk", "_lru")]
            print(f"{name:32} {percent:5}% {reads:8}  {'  '.join(f'{rate:7.2%}' for rate in rates)}", flush=True)
    if record:
        head = {
            "date": str(datetime.date.today()),
            "versions": f"Python {platform.python_version()}, numpy {np.__version__}",
            "blocks": BLOCKS,
            "rows_per_block": ROWS,
            "batch": BATCH,
            "epochs": EPOCHS,
        }
        RESULTS.write_text(json.dumps({**head, "hit_rates": rows}, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
