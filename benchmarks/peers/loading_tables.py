"""Loaders that find samples by their number: Grain, and Hugging Face datasets, which also stream."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from loading_data import BATCH, SAMPLES, SEED, SHAPE

ROW = int(np.prod(SHAPE))

# ------------------------------------------------------------- Grain


def parsed(record: bytes) -> tuple[np.ndarray, np.int64]:
    """A record of ArrayRecord: the label's eight bytes, then the image's."""
    whole = np.frombuffer(record, np.uint8)
    return whole[8:].reshape(SHAPE), whole[:8].view(np.int64)[0]


class Arrays:
    """A source of Grain's: two arrays mapped from npy files."""

    def __init__(self, folder: Path) -> None:
        """Map them."""
        self.x, self.y = (np.load(folder / name, mmap_mode="r") for name in ("x.npy", "y.npy"))

    def __len__(self) -> int:
        """How many samples there are."""
        return len(self.y)

    def __getitem__(self, at: int) -> Any:
        """One sample."""
        return self.x[at], self.y[at]


class _Grain:
    def __init__(self, folder: Path, form: str, threads: int, workers: int) -> None:
        import grain

        if form == "arrays":
            rows: Any = grain.MapDataset.source(Arrays(folder))
        else:
            rows = grain.MapDataset.source(grain.sources.ArrayRecordDataSource(str(folder / "samples.arrayrecord")))
        dataset = rows.seed(SEED).shuffle()
        if form != "arrays":
            dataset = dataset.map(parsed)
        # What is read ahead are whole batches, each by one thread; repeated, it has another order in each epoch.
        read = grain.ReadOptions(num_threads=threads, prefetch_buffer_size=2 * threads)
        batches = dataset.batch(BATCH).repeat().to_iter_dataset(read)
        if workers:
            batches = batches.mp_prefetch(grain.MultiprocessingOptions(num_workers=workers, per_worker_buffer_size=8))
        self._iterator = iter(batches)
        self._done = 0

    def epoch(self, number: int) -> Iterator[Any]:
        whole = -(-SAMPLES // BATCH)
        for _ in range(whole - self._done % whole):
            x, y = next(self._iterator)
            self._done += 1
            yield torch.from_numpy(x), torch.from_numpy(y)

    def state(self) -> Any:
        """Its own, and how many batches were taken: that says where the epoch ends."""
        return [self._iterator.get_state(), self._done]

    def resume(self, state: Any) -> Iterator[Any]:
        own, self._done = state
        self._iterator.set_state(own)
        return self.epoch(0)


class Grain:
    """ArrayRecord with one record per group, as its documentation advises for random reads; and npy files."""

    def write(self, folder: Path, x: np.ndarray, y: np.ndarray) -> None:
        """In both forms."""
        from array_record.python.array_record_module import ArrayRecordWriter

        writer = ArrayRecordWriter(str(folder / "samples.arrayrecord"), "group_size:1,uncompressed")
        for row, label in zip(x, y, strict=True):
            writer.write(label.tobytes() + row.tobytes())
        writer.close()
        np.save(folder / "x.npy", x)
        np.save(folder / "y.npy", y)

    def open(self, folder: Path, *, form: str = "records", threads: int = 16, workers: int = 0) -> _Grain:
        """Its dataset and iterator."""
        return _Grain(folder, form, threads, workers)


# ------------------------------------------------------------- Hugging Face datasets


class _Face:
    """Map-style: shuffled by an index over the rows of Arrow files that are mapped."""

    def __init__(self, folder: Path, form: str, way: str, workers: int) -> None:
        from datasets import load_from_disk

        self._set = load_from_disk(str(folder / form))
        self._form, self._way, self._workers = form, way, workers
        self._number = self._done = 0

    def epoch(self, number: int, start: int = 0) -> Iterator[Any]:
        self._number, self._done = number, start
        for batch in self._batches(number, start):
            self._done += 1
            yield self._tensors(batch)

    def _batches(self, number: int, start: int) -> Any:
        rows = self._set.shuffle(seed=SEED + number, keep_in_memory=True)
        if start:
            rows = rows.select(range(start * BATCH, SAMPLES), keep_in_memory=True)
        if self._way == "iter":
            return rows.with_format("torch" if self._form == "array" else "arrow").iter(BATCH)
        loader: Any = torch.utils.data.DataLoader
        return loader(rows.with_format("torch"), batch_size=BATCH, num_workers=self._workers)

    def _tensors(self, batch: Any) -> Any:
        if self._form == "array":
            return batch["x"].to(torch.uint8), batch["y"]  # the format makes int64 of all whole numbers
        return _of_arrow(batch)

    def state(self) -> Any:
        """It has none: the epoch's number and how many of its batches were taken."""
        return {"epoch": self._number, "done": self._done}

    def resume(self, state: Any) -> Iterator[Any]:
        return self.epoch(state["epoch"], state["done"])


def _of_arrow(table: Any) -> Any:
    """Images kept as bytes of one length, by hand."""
    raw = b"".join(table["x"].to_pylist())
    return torch.frombuffer(bytearray(raw), dtype=torch.uint8).view(-1, *SHAPE), torch.tensor(table["y"].to_pylist())


class _FaceStream:
    """Streaming: shards in random order, and a buffer from which samples are drawn."""

    def __init__(self, folder: Path, buffer: int, form: str, workers: int) -> None:
        from datasets import load_from_disk

        rows = load_from_disk(str(folder / "array")).to_iterable_dataset(num_shards=64)
        self._set: Any = rows.shuffle(seed=SEED, buffer_size=buffer).with_format(form)
        self._loader: Any = None
        if workers:
            from torchdata.stateful_dataloader import StatefulDataLoader

            more = {"num_workers": workers, "persistent_workers": True}
            self._loader = StatefulDataLoader(self._set, batch_size=BATCH, **more)

    def epoch(self, number: int) -> Iterator[Any]:
        self._set.set_epoch(number)
        return self._rest()

    def _rest(self) -> Iterator[Any]:
        for batch in self._set.iter(BATCH) if self._loader is None else self._loader:
            yield torch.as_tensor(batch["x"]).to(torch.uint8), torch.as_tensor(batch["y"])

    def state(self) -> Any:
        return (self._loader or self._set).state_dict()

    def resume(self, state: Any) -> Iterator[Any]:
        (self._loader or self._set).load_state_dict(state)
        return self._rest()


class Face:
    """Arrow files by `save_to_disk`: images as arrays of fixed shape, or as bytes."""

    def __init__(self, *, streams: bool = False) -> None:
        """`streams`: as an iterable dataset."""
        self._streams = streams

    def write(self, folder: Path, x: np.ndarray, y: np.ndarray) -> None:
        """In both forms, unless it streams."""
        from datasets import Array3D, Dataset, Features, Value

        forms: dict[str, Any] = {"array": Array3D(SHAPE, "uint8")}
        if not self._streams:
            forms["bytes"] = Value("binary")
        for form, kind in forms.items():
            rows = list(x) if form == "array" else [row.tobytes() for row in x]
            made = Dataset.from_dict({"x": rows, "y": y}, features=Features({"x": kind, "y": Value("int64")}))
            made.save_to_disk(str(folder / form))

    def open(self, folder: Path, **setting: Any) -> Any:
        """As the setting says."""
        return _FaceStream(folder, **setting) if self._streams else _Face(folder, **setting)


GRAIN, FACE, FACE_STREAM = Grain(), Face(), Face(streams=True)
