"""How fast, how small and how even the order of samples is: `python benchmarks/order.py`."""

from __future__ import annotations

import argparse
import datetime
import json
import math
import os
import platform
import statistics
import time
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np

from cordee.feed.order import Order

SIZES = (50_000, 10**6, 10**9, 10**12)
BATCH = 10_000
RESULTS = Path(__file__).parent / "results" / "order.json"


def deviation(observed: Any, expected: Any, freedom: int) -> float:
    """How many standard deviations a chi-square sum lies from its mean (Wilson and Hilferty's cube root)."""
    total = float(((observed - expected) ** 2 / expected).sum())
    return (math.pow(total / freedom, 1 / 3) - (1 - 2 / (9 * freedom))) / math.sqrt(2 / (9 * freedom))


def speed(samples: int, shuffle: str, total: int) -> float:
    """Ids a second on one core: the median of five runs over `total` ids, in batches of 10,000, new epochs included."""
    order = Order(samples, BATCH, shuffle=shuffle, steps_per_epoch=max(1, samples // BATCH))
    rates = []
    for run in range(6):
        began = time.perf_counter()
        done = 0
        while done < total:
            epoch, step = divmod(done // BATCH, order.steps)
            done += len(order.ids(100 * run + epoch, step))
        rates.append(done / (time.perf_counter() - began))
    return statistics.median(rates[1:])  # the first one warms up


def peak_bytes(samples: int, shuffle: str) -> int:
    """The most memory that making one batch of 10,000 ids takes, the batch and any table included."""
    order = Order(samples, BATCH, seed=77, shuffle=shuffle)
    tracemalloc.start()
    order.ids(0, order.steps // 2)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    return peak


def evenness_of_large(samples: int, epochs: int = 2_000) -> dict[str, float]:
    """Chi-square over 64 bins, in standard deviations: ids along one epoch, at one position over epochs, neighbours."""
    count = min(10**6, samples // 100)
    ids = Order(samples, count, seed=1).ids(0, 0)
    along = np.bincount((ids * 64) // samples, minlength=64)
    edges = np.linspace(0, 1, 65)
    distances = np.histogram(np.abs(np.diff(ids)) / samples, edges)[0]
    falling = np.diff(2 * edges - edges**2) * (count - 1)  # as for two independent draws
    order = Order(samples, 1, seed=2)
    at_one = np.concatenate([order.ids(epoch, samples // 3) for epoch in range(epochs)])
    over = np.bincount((at_one * 64) // samples, minlength=64)
    return {
        "ids_along_an_epoch": deviation(along, count / 64, 63),
        "id_at_a_position": deviation(over, epochs / 64, 63),
        "adjacent_distance": deviation(distances, falling, 63),
    }


def position_of_an_id(samples: int, epochs: int) -> float:
    """The other way round: where one id stands, over epochs (whole epochs have to be made to find it)."""
    order = Order(samples, samples, seed=4)
    places = np.array([np.flatnonzero(order.ids(epoch, 0) == samples // 3)[0] for epoch in range(epochs)])
    return deviation(np.bincount((places * 64) // samples, minlength=64), epochs / 64, 63)


def evenness_of_small(samples: int, epochs: int) -> dict[str, float]:
    """The same for a small set: the whole table of position by id, and the distances of neighbours."""
    order = Order(samples, samples, seed=3)
    every = np.stack([order.ids(epoch, 0) for epoch in range(epochs)])
    table = np.zeros((samples, samples))
    for position in range(samples):
        table[position] = np.bincount(every[:, position], minlength=samples)
    # Rows and columns of a permutation each hold one mark, which stretches the sum by n / (n - 1).
    expected = epochs / samples
    shrunk = expected + (table - expected) * math.sqrt((samples - 1) / samples)
    figures = {"position_by_id": deviation(shrunk, expected, (samples - 1) ** 2)}
    if samples > 2:
        # One pair of neighbours an epoch, so that the counted distances are independent of one another.
        distances = np.bincount(np.abs(every[:, 0] - every[:, 1]), minlength=samples)[1:]
        shares = 2 * (samples - np.arange(1, samples)) / (samples * (samples - 1))
        figures["adjacent_distance"] = deviation(distances, shares * epochs, samples - 2)
    return figures


def processor() -> str:
    """The processor's name, where the system tells it."""
    lines = Path("/proc/cpuinfo").read_text().splitlines() if Path("/proc/cpuinfo").exists() else []
    return next((line.split(":")[1].strip() for line in lines if line.startswith("model name")), platform.machine())


def measure(quick: bool) -> dict[str, Any]:
    """All figures of this benchmark."""
    total, epochs = (10**6, 500) if quick else (10**7, 4_000)
    small = {samples: evenness_of_small(samples, epochs) for samples in range(2, 101)}
    worst = {
        name: max((figures[name] for figures in small.values() if name in figures), key=abs)
        for name in ("position_by_id", "adjacent_distance")
    }
    return {
        "date": datetime.date.today().isoformat(),
        "machine": f"{processor()}, {os.cpu_count()} cores, one used",
        "versions": f"Python {platform.python_version()}, numpy {np.__version__}",
        "speed_and_memory": [
            {
                "samples": samples,
                "shuffle": shuffle,
                "ids_per_s": round(speed(samples, shuffle, total)),
                "peak_bytes": peak_bytes(samples, shuffle),
            }
            for samples in SIZES
            for shuffle in ("full", "blocks")
        ],
        "deviation_large": {str(samples): evenness_of_large(samples) for samples in SIZES[1:]},
        "deviation_position_of_an_id": {"100000": position_of_an_id(100_000, epochs // 2)},
        "deviation_worst_of_2_to_100": worst,
        "sets_beyond_3_deviations": {
            name: sum(abs(figures.get(name, 0.0)) > 3 for figures in small.values()) for name in worst
        },
    }


def main() -> None:
    """Measure, print and record."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a tenth of the work, nothing is recorded")
    quick = parser.parse_args().quick
    result = measure(quick)
    print(f"{'samples':>16} {'shuffle':>8} {'million ids/s':>14} {'peak KiB':>9}")
    for row in result["speed_and_memory"]:
        rate, peak = row["ids_per_s"] / 1e6, row["peak_bytes"] / 1024
        print(f"{row['samples']:>16,} {row['shuffle']:>8} {rate:>14.1f} {peak:>9.0f}")
    print("\nchi-square, in standard deviations from what chance gives:")
    for samples, figures in result["deviation_large"].items():
        print(f"{int(samples):>16,} " + "  ".join(f"{name} {value:+.2f}" for name, value in figures.items()))
    for samples, value in result["deviation_position_of_an_id"].items():
        print(f"{int(samples):>16,} position_of_an_id {value:+.2f}")
    worst = result["deviation_worst_of_2_to_100"]
    print("  2 to 100, worst " + "  ".join(f"{name} {value:+.2f}" for name, value in worst.items()))
    if not quick:
        RESULTS.parent.mkdir(exist_ok=True)
        RESULTS.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
