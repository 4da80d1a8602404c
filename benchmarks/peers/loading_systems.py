"""The loaders that are compared: what each one is, and which of its settings are tried."""

from __future__ import annotations

from peers.loading_data import System

_WORKERS = (0, 2)
_TENSORS = {f"{kind}, {workers} workers": (kind, workers) for workers in _WORKERS for kind in ("tensors", "arrays")}


def _rows(*numbers: int) -> dict[str, dict[str, object]]:
    """Rows as tensors or as arrays, with so many workers."""
    return {
        setting: {"tensors": kind == "tensors", "workers": workers}
        for setting, (kind, workers) in _TENSORS.items()
        if workers in numbers
    }


CORDEE = System(
    "a store by `cordee data build`, read by the feeder of one worker, as a training does; no other process reads",
    "loading_cordee",
    "CORDEE",
    ("torch", "numpy"),
)
PEERS = {
    "torch-0": System(
        "torch's DataLoader without workers over npy files that are mapped; samples one by one, default collate",
        "loading_torch",
        "SAMPLES_OF",
        ("torch", "numpy"),
        settings=_rows(0),
    ),
    "torch-2": System(
        "the same with 2 workers, persistent, 4 batches ahead each",
        "loading_torch",
        "SAMPLES_OF",
        ("torch", "numpy"),
        settings=_rows(2),
    ),
    "torch-batches": System(
        "torch's DataLoader without automatic batching: the user's dataset gathers a whole batch by indexing the"
        " arrays, so what is measured is the user's own code",
        "loading_torch",
        "BATCHES_OF",
        ("torch", "numpy"),
        settings=_rows(0, 2),
        whole_batches=True,
    ),
    "torchdata": System(
        "StatefulDataLoader over npy files that are mapped; samples one by one",
        "loading_torch",
        "STATEFUL",
        ("torchdata", "torch"),
        ("torchdata.stateful_dataloader",),
        settings=_rows(0, 2),
    ),
    "litdata": System(
        "LitData: StreamingDataset and StreamingDataLoader; it shuffles chunks, and samples within a chunk",
        "loading_shards",
        "LITDATA",
        ("litdata", "torch"),
        ("litdata",),
        settings={
            f"chunks of {chunk}, {words}, {workers} workers": {"chunk": chunk, "workers": workers, **more}
            for chunk, words, more, numbers in (
                ("64MB", "as it comes", {}, (0,)),
                ("64MB", "shuffled in windows", {"batch_decode": 0}, _WORKERS),
                ("256MB", "shuffled wholly", {"batch_decode": 0, "item_shuffle_window": "full"}, _WORKERS),
            )
            for workers in numbers
        },
    ),
    "grain": System(
        "Grain: MapDataset, shuffled, in batches",
        "loading_tables",
        "GRAIN",
        ("grain", "array_record", "torch"),
        ("grain",),
        settings={
            "ArrayRecord, 16 threads": {},
            "ArrayRecord, 2 threads": {"threads": 2},
            "ArrayRecord, no threads": {"threads": 0},
            "ArrayRecord, 2 workers": {"threads": 2, "workers": 2},
            "npy files, no threads": {"form": "arrays", "threads": 0},
            "npy files, 2 threads": {"form": "arrays", "threads": 2},
        },
    ),
    "webdataset": System(
        "WebDataset: 40 tar files in random order and a buffer to shuffle in",
        "loading_shards",
        "WEBDATASET",
        ("webdataset", "torch"),
        ("webdataset",),
        settings={
            f"buffer of {buffer}, {workers} workers": {"buffer": buffer, "workers": workers}
            for buffer in (1_000, 10_000)
            for workers in _WORKERS
        },
    ),
    "mosaic": System(
        "MosaicML Streaming: StreamingDataset and StreamingDataLoader over MDS shards",
        "loading_shards",
        "MOSAIC",
        ("mosaicml-streaming", "torch"),
        ("loading_torchvision", "streaming"),
        environment="streaming",
        settings={
            "bytes, no workers": {},
            "bytes, 2 workers": {"workers": 2},
            "arrays, 2 workers": {"form": "array", "workers": 2},
            "bytes, naive shuffle, 2 workers": {"algorithm": "naive", "workers": 2},
        },
    ),
    "hf-map": System(
        "Hugging Face datasets, map-style: Arrow files, shuffled by an index",
        "loading_tables",
        "FACE",
        ("datasets", "pyarrow", "torch"),
        ("datasets",),
        settings={
            "arrays, iter": {"form": "array", "way": "iter", "workers": 0},
            "arrays, DataLoader": {"form": "array", "way": "loader", "workers": 0},
            "arrays, DataLoader, 2 workers": {"form": "array", "way": "loader", "workers": 2},
            "bytes, iter": {"form": "bytes", "way": "iter", "workers": 0},
        },
    ),
    "hf-stream": System(
        "Hugging Face datasets, streaming: 64 shards in random order and a buffer to shuffle in",
        "loading_tables",
        "FACE_STREAM",
        ("datasets", "torchdata", "torch"),
        ("datasets", "torchdata.stateful_dataloader"),
        settings={
            f"{form}, buffer of {buffer}, {workers} workers": {"buffer": buffer, "form": form, "workers": workers}
            for buffer in (1_000, 10_000)
            for form, workers in (("numpy", 0), ("torch", 0), ("torch", 2))
        },
    ),
}
