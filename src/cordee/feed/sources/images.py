"""Image files as rows: one folder per class, or without labels."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from io import BytesIO

import numpy as np
from numpy.typing import NDArray

from cordee.core.errors import DataError
from cordee.feed.columns import Kind, Schema
from cordee.feed.places import Place
from cordee.feed.sources.compressed import opened
from cordee.feed.sources.labels import check_label, label_kind, label_of
from cordee.feed.sources.pictures import Form, decode
from cordee.feed.sources.seam import ON_ERROR, Chunk, Fault

ENDINGS = (".jpg", ".jpeg", ".jpe", ".png", ".bmp", ".gif", ".webp", ".tif", ".tiff", ".ppm", ".pgm", ".pbm")
CLUTTER = frozenset(["thumbs.db", "desktop.ini", ".ds_store"])
"""Files that systems leave in folders of images."""


@dataclass(frozen=True)
class ImageReader:
    """Reads image files, of any mode and size, as uint8 of one shape; a row is a file."""

    form: Form = field(default_factory=Form)
    label: str | None = "folder"
    """Which folder's name is the class; None: rows have no label."""
    classes: tuple[str, ...] = ()
    """The classes in the order of their numbers; none given: those found, sorted."""
    on_error: str = "stop"

    endings = ENDINGS
    in_process = False

    def __post_init__(self) -> None:
        """Refuse what is not known."""
        check_label(self.label)
        if self.on_error not in ON_ERROR:
            raise DataError(f"on_error={self.on_error!r}: choose one of {', '.join(ON_ERROR)}")

    @property
    def key(self) -> str:
        """The form, and how files are labelled."""
        return f"images 1 {self.form} {self.label} {self.classes} {self.on_error}"

    def schema(self, places: Sequence[Place]) -> Schema:
        """The shape that was asked for, or that of the first image that can be read; and classes, by folders' names."""
        images = [place for place in places if not _is_clutter(place)]
        if not images:
            raise DataError("there are no images: files whose names end in .jpg, .png and so on were expected")
        label = {} if self.label is None else {"y": label_kind(images, self.label, self.classes)}
        if self.form.size is not None:
            return {"x": Kind("uint8", self.form.shape(*self.form.size)), **label}
        for place in images:
            first = self._read(place)
            if not isinstance(first, Fault):
                return {"x": Kind("uint8", first.shape), **label}
        raise DataError(f"none of {len(images)} images can be read, the first is {images[0].shown}")

    def chunks(self, place: Place, schema: Schema, start: int = 0) -> Iterator[Chunk]:
        """The one row of a file."""
        if start or _is_clutter(place):
            return
        pixels = self._read(place)
        if not isinstance(pixels, Fault) and pixels.shape != schema["x"].shape:
            shapes = f"it has the shape {pixels.shape}, another image {schema['x'].shape}"
            pixels = Fault(place.shown, 1, f"{shapes}: give one for all, such as size=(224, 224)")
        if isinstance(pixels, Fault):
            if self.on_error == "stop":
                raise DataError(f"{pixels}. To leave such files out and count them: on_error='skip'")
            empty = {name: np.zeros((0, *kind.shape), kind.dtype) for name, kind in schema.items()}
            yield Chunk({**empty}, 0, 1, (pixels,))
            return
        label = {} if self.label is None else {"y": np.array([label_of(schema["y"], place, self.label)], np.int64)}
        yield Chunk({"x": pixels[None], **label}, 1, 1)

    def _read(self, place: Place) -> NDArray[np.uint8] | Fault:
        with opened(place) as file:
            raw = file.read()
        try:
            return decode(BytesIO(raw), self.form)
        except DataError:
            raise
        except Exception as error:  # Pillow raises whatever its readers of many formats come upon
            kind = type(error).__name__
            what = f"it cannot be decoded ({kind}: {error})"
            if kind == "UnidentifiedImageError":  # whose text is where a buffer of ours lies
                what = "it is no image, or of a form that Pillow does not read"
            return Fault(place.shown, 1, what if raw else "the file is empty")


def _is_clutter(place: Place) -> bool:
    return place.name.lower() in CLUTTER
