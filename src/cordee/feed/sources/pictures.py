"""One image file as numbers: decoded by Pillow, turned as its EXIF says, in one mode and of one size."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from cordee.core.errors import DataError

if TYPE_CHECKING:
    from PIL.Image import Image

MODES = {"RGB": 3, "L": 1, "RGBA": 4}
"""Colour, grey, and colour with how much it covers; and the numbers per pixel."""
FITS = ("crop", "pad", "stretch")
LAYOUTS = ("CHW", "HWC")
_COVERING = frozenset(["LA", "La", "RGBA", "RGBa", "PA"])
_DEEP = frozenset(["I;16", "I;16B", "I;16L", "I;16N", "I"])


@dataclass(frozen=True)
class Form:
    """What every image is made to be."""

    size: tuple[int, int] | None = None
    """Height and width; None: all images have one size already."""
    mode: str = "RGB"
    fit: str = "crop"
    """Of another shape: `crop` takes the middle, `pad` adds margins, `stretch` changes the shape."""
    layout: str = "CHW"
    """`CHW`: channels first, as layers of torch take them. `HWC`: as they lie in files."""
    background: int = 255
    """Of margins, and behind what is transparent: 0 (black) to 255 (white)."""

    def __post_init__(self) -> None:
        """Refuse what is not known."""
        size = self.size
        if size is not None and (len(size) != 2 or any(not isinstance(one, int) or one < 1 for one in size)):
            raise DataError(f"size={size!r}: height and width are needed, for instance size=(224, 224)")
        for name, known in (("mode", tuple(MODES)), ("fit", FITS), ("layout", LAYOUTS)):
            if (value := getattr(self, name)) not in known:
                raise DataError(f"{name}={value!r}: choose one of {', '.join(known)}")
        if not isinstance(self.background, int) or not 0 <= self.background <= 255:
            raise DataError(f"background={self.background!r}: a number from 0 (black) to 255 (white) is needed")

    def shape(self, height: int, width: int) -> tuple[int, int, int]:
        """Of an image of this size."""
        channels = MODES[self.mode]
        return (channels, height, width) if self.layout == "CHW" else (height, width, channels)


def decode(file: BinaryIO, form: Form) -> NDArray[np.uint8]:
    """The image in a file, of the form's shape; what Pillow raises for damaged files goes through."""
    pillow, ops = _pillow()
    with pillow.open(file) as image:
        if form.size is not None and image.format == "JPEG":
            # JPEG can be decoded at an eighth, a quarter or half of its size; never below what is asked for.
            image.draft(None, (max(form.size), max(form.size)))
        turned: Image = ops.exif_transpose(image)
        pixels = _resized(_in_mode(turned, form), form)
    array = np.asarray(pixels, dtype=np.uint8).reshape(pixels.height, pixels.width, MODES[form.mode])
    return np.ascontiguousarray(array.transpose(2, 0, 1)) if form.layout == "CHW" else array


def _in_mode(image: Image, form: Form) -> Image:
    pillow, _ = _pillow()
    if image.mode == "F":
        raise ValueError("its pixels are floats, which have no range of their own: write it again with 8 or 16 bits")
    if image.mode in _DEEP:  # 16 bits per pixel: Pillow would cut off what is above 255
        grey = (np.asarray(image).astype(np.int64) >> 8).clip(0, 255).astype(np.uint8)
        image = pillow.fromarray(grey)
    if form.mode != "RGBA" and (image.mode in _COVERING or "transparency" in image.info):
        behind = pillow.new("RGBA", image.size, (form.background,) * 3 + (255,))
        image = pillow.alpha_composite(behind, image.convert("RGBA"))
    return image if image.mode == form.mode else image.convert(form.mode)


def _resized(image: Image, form: Form) -> Image:
    pillow, ops = _pillow()
    if form.size is None or image.size == form.size[::-1]:
        return image
    size, way = form.size[::-1], pillow.Resampling.BILINEAR
    if form.fit == "stretch":
        return image.resize(size, way)
    if form.fit == "crop":
        cropped: Image = ops.fit(image, size, way)
        return cropped
    channels = MODES[form.mode]
    padded: Image = ops.pad(image, size, way, color=form.background if channels == 1 else (form.background,) * channels)
    return padded


def _pillow() -> tuple[Any, Any]:
    """Pillow's `Image` and `ImageOps`."""
    try:
        from PIL import Image, ImageOps
    except ImportError:
        raise DataError("images are decoded by Pillow, which is not installed: pip install 'cordee[data]'") from None
    return Image, ImageOps
