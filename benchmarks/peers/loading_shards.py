"""Loaders that read shards of samples one after the other: LitData, MosaicML Streaming, WebDataset."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from loading_data import BATCH, SAMPLES, SEED, SHAPE

AHEAD = 4


def _more(workers: int) -> dict[str, Any]:
    return {"num_workers": workers, **({"persistent_workers": True, "prefetch_factor": AHEAD} if workers else {})}


# ------------------------------------------------------------- LitData

X = Y = None
"""What `litdata.optimize` reads, in its processes, which are forked."""


def lit_sample(at: int) -> dict[str, Any]:
    """One sample for LitData."""
    assert X is not None and Y is not None
    return {"x": torch.from_numpy(X[at]), "y": int(Y[at])}


class _Lit:
    def __init__(self, folder: Path, chunk: str, workers: int, **more: Any) -> None:
        from litdata import StreamingDataLoader, StreamingDataset

        dataset = StreamingDataset(str(folder / chunk), shuffle=True, seed=SEED, drop_last=False, **more)
        self._loader: Any = StreamingDataLoader(dataset, batch_size=BATCH, **_more(workers))

    def epoch(self, number: int) -> Iterator[Any]:
        for batch in self._loader:  # the loader counts epochs by itself
            yield batch["x"], torch.as_tensor(batch["y"])

    def state(self) -> Any:
        return self._loader.state_dict()

    def resume(self, state: Any) -> Iterator[Any]:
        self._loader.load_state_dict(state)
        return self.epoch(0)


class LitData:
    """Chunks of 64 MB, as its documentation has them, or all samples in one: chunks are what it shuffles within."""

    def write(self, folder: Path, x: np.ndarray, y: np.ndarray) -> None:
        """By `optimize`."""
        import litdata

        global X, Y
        X, Y = x, y
        for chunk in ("64MB", "256MB"):
            litdata.optimize(
                fn=lit_sample,
                inputs=list(range(len(y))),
                output_dir=str(folder / chunk),
                chunk_bytes=chunk,
                num_workers=1,
                start_method="fork",
                verbose=False,
            )

    def open(self, folder: Path, *, chunk: str = "64MB", workers: int = 0, **more: Any) -> _Lit:
        """Its dataset and loader."""
        return _Lit(folder, chunk, workers, **more)


# ------------------------------------------------------------- MosaicML Streaming


class _Mosaic:
    def __init__(self, folder: Path, form: str, algorithm: str, workers: int) -> None:
        from streaming import StreamingDataLoader, StreamingDataset

        class Decoded(StreamingDataset):
            """Bytes become a tensor."""

            def __getitem__(self, at: Any) -> Any:
                sample = super().__getitem__(at)
                x = sample["x"]
                if isinstance(x, bytes):
                    x = np.frombuffer(bytearray(x), np.uint8).reshape(SHAPE)
                return torch.from_numpy(x), int(sample["y"])

        dataset = Decoded(
            local=str(folder / form),
            shuffle=True,
            shuffle_algo=algorithm,
            shuffle_seed=SEED,
            num_canonical_nodes=1,
            batch_size=BATCH,
            **({"shuffle_block_size": SAMPLES} if algorithm == "py1e" else {}),
        )
        self._loader: Any = StreamingDataLoader(dataset, batch_size=BATCH, **_more(workers))

    def epoch(self, number: int) -> Iterator[Any]:
        yield from self._loader

    def state(self) -> Any:
        return self._loader.state_dict()

    def resume(self, state: Any) -> Iterator[Any]:
        self._loader.load_state_dict(state)
        return iter(self._loader)


class Mosaic:
    """MDS shards of 64 MB, with arrays or with plain bytes."""

    def write(self, folder: Path, x: np.ndarray, y: np.ndarray) -> None:
        """By its writer, without compression and hashes."""
        from streaming import MDSWriter

        for form, kind in (("bytes", "bytes"), ("array", f"ndarray:uint8:{','.join(map(str, SHAPE))}")):
            with MDSWriter(out=str(folder / form), columns={"x": kind, "y": "int"}, size_limit=2**26) as writer:
                for row, label in zip(x, y, strict=True):
                    writer.write({"x": row.tobytes() if form == "bytes" else row, "y": int(label)})

    def open(self, folder: Path, *, form: str = "bytes", algorithm: str = "py1e", workers: int = 0) -> _Mosaic:
        """What another process left in shared memory is taken away before."""
        from streaming.base.util import clean_stale_shared_memory

        clean_stale_shared_memory()
        return _Mosaic(folder, form, algorithm, workers)


# ------------------------------------------------------------- WebDataset


class _Web:
    def __init__(self, folder: Path, buffer: int, workers: int) -> None:
        self._urls = sorted(str(path) for path in folder.glob("*.tar"))
        self._buffer, self._workers = buffer, workers
        self._done = self._number = 0

    def epoch(self, number: int) -> Iterator[Any]:
        import webdataset as wds

        self._number, self._done = number, 0
        dataset = (
            wds.WebDataset(self._urls, shardshuffle=len(self._urls), detshuffle=True, seed=SEED + number)
            .shuffle(self._buffer, initial=self._buffer, seed=SEED + number)
            .to_tuple("x", "y")
            .map_tuple(_image, _label)
            .batched(BATCH)
        )
        # Batches are made in the workers, as its documentation advises.
        loader: Any = wds.WebLoader(dataset, batch_size=None, num_workers=self._workers)
        for x, y in loader:
            self._done += 1
            yield torch.as_tensor(x), torch.as_tensor(y)

    def state(self) -> Any:
        """It has none: the epoch's number and how many of its batches were taken."""
        return {"epoch": self._number, "done": self._done}

    def resume(self, state: Any) -> Iterator[Any]:
        return itertools.islice(self.epoch(state["epoch"]), state["done"], None)


def _image(raw: bytes) -> np.ndarray:
    return np.frombuffer(raw, np.uint8).reshape(SHAPE)


def _label(raw: bytes) -> int:
    return int(raw)


class WebDataset:
    """Tar files of 1,000 samples each."""

    def write(self, folder: Path, x: np.ndarray, y: np.ndarray) -> None:
        """By its writer."""
        import webdataset as wds

        with wds.ShardWriter(str(folder / "%06d.tar"), maxcount=1_000, verbose=0) as writer:
            for row, label in zip(x, y, strict=True):
                writer.write({"__key__": f"{int(label):08d}", "x": row.tobytes(), "y": str(int(label)).encode()})

    def open(self, folder: Path, *, buffer: int = 1_000, workers: int = 0) -> _Web:
        """Its pipeline is made anew for each epoch, by its seed."""
        return _Web(folder, buffer, workers)


LITDATA, MOSAIC, WEBDATASET = LitData(), Mosaic(), WebDataset()
