"""Processes that share a cache folder, of which one after the other is killed; run by a test, with nothing of torch.

killing.py FOLDER KILLS SEED
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import sys
import time
from pathlib import Path

import numpy as np

from cordee.feed.cache.disk import Disk

BLOCKS, NBYTES, PLACES, WORKERS = 40, 300_000, 10, 3
HEAD = 24


def content(block: int) -> np.ndarray:
    return np.random.default_rng(block).integers(0, 256, NBYTES).astype(np.uint8)


WHOLE = [content(block) for block in range(BLOCKS)]


def open_disk(folder: Path) -> Disk:
    return Disk(folder, PLACES * (NBYTES + HEAD), "k", lambda block: block * 7919 % 101, deadline_s=20)


def work(folder: Path, seed: int) -> None:
    """Read and write until killed; end with 1 if something is not what it should be."""
    draw, into = random.Random(seed), np.empty(NBYTES, np.uint8)
    disk = open_disk(folder)
    ranks = [0]
    disk._rank = lambda block: (block * 7919 + ranks[0]) % 101
    while True:
        ranks[0] += 1
        disk.rerank()
        block = draw.randrange(BLOCKS)
        if disk.read(block, into):
            if not np.array_equal(into, WHOLE[block]):
                os._exit(1)
        elif (claim := disk.claim(block, NBYTES)) is not None:
            claim.write(WHOLE[block])


def start(folder: Path, seed: int) -> int:
    pid = os.fork()
    if not pid:
        try:
            work(folder, seed)
        except BaseException as error:
            print(repr(error), file=sys.stderr)
        os._exit(2)
    return pid


def sizes(folder: Path) -> dict[str, int]:
    found = {}
    for one in folder.iterdir():
        if one.name not in ("lock", "used"):
            with contextlib.suppress(FileNotFoundError):
                found[one.name] = one.stat().st_size
    return found


def main() -> None:
    folder, kills, draw = Path(sys.argv[1]), int(sys.argv[2]), random.Random(int(sys.argv[3]))
    told = {"kills": 0, "corrupt": 0, "most": 0, "cut_short": 0, "read": 0, "budget": PLACES * (NBYTES + HEAD)}
    running = [start(folder, draw.randrange(2**30)) for _ in range(WORKERS)]
    into = np.empty(NBYTES, np.uint8)
    try:
        while told["kills"] < kills:
            time.sleep(draw.uniform(0.002, 0.02))
            pid = running.pop(0)
            os.kill(pid, signal.SIGKILL)
            _, status = os.waitpid(pid, 0)
            told["corrupt"] += status != signal.SIGKILL
            told["kills"] += 1
            found = sizes(folder)
            told["cut_short"] += any(name.endswith(".part") for name in found)
            told["most"] = max(told["most"], sum(found.values()))
            running.append(start(folder, draw.randrange(2**30)))
    finally:
        for pid in running:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
    disk = open_disk(folder)
    for block in range(BLOCKS):
        if disk.read(block, into):
            told["read"] += 1
            told["corrupt"] += not np.array_equal(into, WHOLE[block])
    told["left"] = sum(sizes(folder).values())
    told["counted"] = disk.used
    told["corrupt"] += disk.damaged
    print(json.dumps(told))


if __name__ == "__main__":
    main()
