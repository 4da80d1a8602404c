"""Folders of images as users have them: all sizes and modes, other files among them, broken ones."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from cordee.core.errors import DataError
from cordee.feed.columns import Kind
from cordee.feed.sources.images import ENDINGS, ImageReader
from cordee.feed.sources.labels import classes_in
from cordee.feed.sources.pictures import Form
from rawfiles import place_of, places_below, read, read_places

COLOURS = {"red": (255, 0, 0), "green": (0, 255, 0), "light blue": (0, 128, 255)}


def folder(root: Path) -> Path:
    """Three classes, one of them with a space, one without images; and what systems leave there."""
    for number, (name, colour) in enumerate(COLOURS.items()):
        (root / name).mkdir(parents=True)
        for place in range(2 + number):
            Image.new("RGB", (20 + 7 * place, 30), colour).save(root / name / f"{place}.{('png', 'jpg')[place % 2]}")
        (root / name / "Thumbs.db").write_bytes(b"\xd0\xcf")
    (root / "nothing here").mkdir()
    (root / ".DS_Store").write_bytes(b"x")
    return root


def images_below(root: Path) -> tuple[Any, ...]:
    return tuple(one for one in places_below(root) if one.name.lower().endswith(ENDINGS))


def test_a_folder_per_class_gives_images_of_one_size_and_classes_by_name(tmp_path: Path) -> None:
    reader = ImageReader(Form((16, 12)))
    places = images_below(folder(tmp_path))
    schema = reader.schema(places)
    assert schema["x"] == Kind("uint8", (3, 16, 12))
    assert classes_in(schema["y"]) == ("green", "light blue", "red")
    columns = read_places(reader, places)
    assert columns["y"].tolist() == [0, 0, 0, 1, 1, 1, 1, 2, 2]
    means = columns["x"].mean(axis=(2, 3))
    wanted = [COLOURS[("green", "light blue", "red")[label]] for label in columns["y"].tolist()]
    np.testing.assert_allclose(means, wanted, atol=2)  # JPEG changes colours a little


def test_what_systems_leave_there_is_no_image_even_if_a_pattern_names_it(tmp_path: Path) -> None:
    root = folder(tmp_path)
    reader = ImageReader(Form((8, 8)))
    assert len(read_places(reader, [one for one in places_below(root) if "nothing" not in one.key])["x"]) == 9


def picture(mode: str) -> Image.Image:
    """8 x 8, left half dark, right half light."""
    ramp = np.full((8, 8), 40, np.uint8)
    ramp[:, 4:] = 200
    if mode == "I;16":
        return Image.fromarray(ramp.astype(np.uint16) * 257)
    if mode == "1":
        return Image.fromarray(ramp > 100)
    grey = Image.fromarray(ramp)
    if mode == "P":
        return grey.convert("RGB").convert("P", palette=Image.Palette.ADAPTIVE)
    return grey.convert(mode)


@pytest.mark.parametrize("mode", ["1", "L", "P", "RGB", "RGBA", "LA", "I;16", "CMYK", "I"])
@pytest.mark.parametrize("wanted", ["RGB", "L", "RGBA"])
def test_every_mode_becomes_the_one_that_is_asked_for(mode: str, wanted: str, tmp_path: Path) -> None:
    image = picture("I;16") if mode == "I" else picture(mode)
    path = tmp_path / f"a.{'tiff' if mode in ('CMYK', 'I') else 'png'}"
    image.save(path)
    x = read(ImageReader(Form(mode=wanted, layout="HWC"), label=None), path)["x"]
    dark, light = (0, 255) if mode == "1" else (40, 200)
    assert x.shape == (1, 8, 8, {"RGB": 3, "L": 1, "RGBA": 4}[wanted])
    np.testing.assert_allclose(x[0, :, :4, :3], dark, atol=2)
    np.testing.assert_allclose(x[0, :, 4:, :3], light, atol=2)
    if wanted == "RGBA":
        assert (x[..., 3] == 255).all()


def test_what_is_transparent_shows_the_background(tmp_path: Path) -> None:
    """And not the colour that a file keeps there."""
    Image.new("RGBA", (4, 4), (255, 0, 0, 0)).save(tmp_path / "a.png")
    for background in (0, 255):
        x = read(ImageReader(Form(background=background), label=None), tmp_path / "a.png")["x"]
        assert (x == background).all()
    paletted = Image.new("P", (4, 4), 0)
    paletted.putpalette([9, 9, 9])
    paletted.save(tmp_path / "b.gif", transparency=0)
    assert (read(ImageReader(Form(), label=None), tmp_path / "b.gif")["x"] == 255).all()


def test_an_image_is_turned_as_its_exif_says(tmp_path: Path) -> None:
    image = Image.new("L", (6, 4), 0)
    image.putpixel((5, 0), 255)  # the corner at the top right
    exif = Image.Exif()
    exif[0x0112] = 6  # turned by 90 degrees
    image.save(tmp_path / "a.png", exif=exif)
    x = read(ImageReader(Form(mode="L"), label=None), tmp_path / "a.png")["x"]
    assert x.shape == (1, 1, 6, 4) and x[0, 0, 5, 3] == 255


@pytest.mark.parametrize(("fit", "columns"), [("crop", [200] * 4), ("stretch", [0, 200, 200, 0]), ("pad", [0] * 4)])
def test_another_shape_is_cropped_padded_or_stretched(fit: str, columns: list[int], tmp_path: Path) -> None:
    """16 wide, 4 high; dark but for the middle half."""
    wide = np.zeros((4, 16), np.uint8)
    wide[:, 4:12] = 200
    Image.fromarray(wide).save(tmp_path / "a.png")
    x = read(ImageReader(Form((4, 4), mode="L", fit=fit, background=0), label=None), tmp_path / "a.png")["x"][0, 0]
    assert x.shape == (4, 4)
    np.testing.assert_allclose(x[0], columns, atol=60)
    assert x.max() > 150


def test_a_broken_image_is_named_or_left_out_and_counted(tmp_path: Path) -> None:
    places = images_below(folder(tmp_path))
    broken = Path(places[5].url)
    broken.write_bytes(broken.read_bytes()[:-30])
    empty = Path(places[6].url)
    empty.write_bytes(b"")
    Path(places[7].url).write_bytes(b"<html>not found</html>")
    with pytest.raises(DataError, match=rf"{broken.name}, row 1: it cannot be decoded.*on_error='skip'"):
        read_places(ImageReader(Form((8, 8))), places)
    reader = ImageReader(Form((8, 8)), on_error="skip")
    schema = reader.schema(places)
    chunks = [chunk for place in places for chunk in reader.chunks(place, schema)]
    assert sum(chunk.rows for chunk in chunks) == 6
    reasons = [fault.reason for chunk in chunks for fault in chunk.faults]
    assert len(reasons) == 3 and reasons[1] == "the file is empty" and reasons[2].startswith("it is no image")


def test_images_of_several_sizes_without_a_size_are_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"shape \(3, 30, 27\), another image \(3, 30, 20\).*size="):
        read_places(ImageReader(), images_below(folder(tmp_path)))


def test_classes_may_be_given_and_a_flat_folder_has_none(tmp_path: Path) -> None:
    places = images_below(folder(tmp_path))
    columns = read_places(ImageReader(Form((8, 8)), classes=("red", "green", "light blue")), places)
    assert columns["y"].tolist() == [1] * 3 + [2] * 4 + [0] * 2
    with pytest.raises(DataError, match=r"'red'.*none of green, blue"):
        read_places(ImageReader(Form((8, 8)), classes=("green", "blue", "light blue")), places)
    flat = place_of(Path(places[0].url))
    with pytest.raises(DataError, match="label=None"):
        ImageReader(Form((8, 8))).schema([flat])
    assert list(ImageReader(Form((8, 8)), label=None).schema([flat])) == ["x"]


@pytest.mark.parametrize("wrong", [{"size": (3,)}, {"mode": "HSV"}, {"fit": "x"}, {"layout": "W"}, {"background": -1}])
def test_an_unknown_form_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(DataError, match=next(iter(wrong))):
        Form(**wrong)
