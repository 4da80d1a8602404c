"""The report in a real browser: on a desk and on a phone, light and dark. Needs Chromium; `CHROMIUM` may name it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from browser import Page, browser, find_browser
from cordee.watch.report import write_report
from records import hostile_run, long_run, start, write

pytestmark = pytest.mark.skipif(find_browser() is None, reason="no Chromium is installed (apt-get install chromium)")

# How many different colours each canvas has: an empty one has a single one.
COLOURS = """
[...document.querySelectorAll("canvas")].map((canvas) => {
  const pixels = new Uint32Array(canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height).data.buffer);
  return new Set(pixels).size;
})
"""
EVERYTHING = "document.body.innerText"
TOO_WIDE = "document.documentElement.scrollWidth - window.innerWidth"
"""How far the page goes beyond the window."""


@pytest.fixture(scope="module")
def chromium(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Page]:
    with browser(tmp_path_factory.mktemp("profile")) as page:
        yield page


def assert_fine(page: Page, plots: int) -> None:
    """Nothing was complained about, every plot is drawn, and nothing makes the page wider than the window."""
    assert page.complaints == []
    colours = page.evaluate(COLOURS)
    assert len(colours) == plots and min(colours, default=9) > 3, colours
    assert page.evaluate(TOO_WIDE) <= 0


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("width", [1200, 400])
def test_a_run_with_a_killed_worker(width: int, dark: bool, killed: Path, chromium: Page) -> None:
    chromium.open(write_report(killed), width=width, dark=dark)
    assert_fine(chromium, plots=10)
    text = chromium.evaluate(EVERYTHING)
    assert "Worker 1 on" in text and "was lost: killed by SIGKILL" in text
    assert "150 of 150" in text and "completed" in text
    back = chromium.evaluate("getComputedStyle(document.body).backgroundColor")
    assert (sum(int(one) for one in back[4:-1].split(", ")) < 300) == dark, back


@pytest.mark.parametrize("width", [1200, 400])
def test_what_a_reader_can_change(width: int, killed: Path, chromium: Page) -> None:
    chromium.open(write_report(killed), width=width)
    before = chromium.evaluate("document.querySelector('canvas').toDataURL()")
    chromium.evaluate("document.querySelector('input[value=seconds]').click()")
    assert_fine(chromium, plots=10)
    over_time = chromium.evaluate("document.querySelector('canvas').toDataURL()")
    assert over_time != before
    chromium.evaluate("document.getElementById('log').click()")
    assert chromium.evaluate("document.querySelector('canvas').toDataURL()") != over_time
    choose = "const list = document.getElementById('whose'); list.value = '2'; list.dispatchEvent(new Event('change'))"
    chromium.evaluate(choose)
    chromium.evaluate("document.querySelectorAll('details').forEach((one) => { one.open = true })")
    assert_fine(chromium, plots=10)
    assert "order (SHA-256)" in chromium.evaluate(EVERYTHING)


def test_a_window_that_becomes_narrow(killed: Path, chromium: Page) -> None:
    chromium.open(write_report(killed), width=1200)
    chromium.call("Emulation.setDeviceMetricsOverride", width=420, height=800, deviceScaleFactor=2, mobile=True)
    chromium.evaluate("new Promise((done) => setTimeout(done, 300))")
    assert_fine(chromium, plots=10)


@pytest.mark.parametrize("width", [1200, 400])
def test_hostile_names_do_nothing(width: int, tmp_path: Path, chromium: Page) -> None:
    chromium.open(write_report(hostile_run(tmp_path)), width=width)
    assert_fine(chromium, plots=6)  # loss, two metrics, throughput, length, histogram
    assert "<script>alert(1)</script>" in chromium.evaluate("document.querySelector('h1').textContent")
    assert chromium.evaluate("document.querySelectorAll('img, b b, script').length") == 3


def test_a_run_without_a_step(tmp_path: Path, chromium: Page) -> None:
    chromium.open(write_report(write(tmp_path, start(0.0, 2))), width=400)
    assert_fine(chromium, plots=0)
    assert "No step" in chromium.evaluate(EVERYTHING)


@pytest.mark.parametrize("width", [1200, 400])
def test_many_workers(width: int, tmp_path: Path, chromium: Page) -> None:
    chromium.open(write_report(write(tmp_path, long_run(600, 60))), width=width)
    assert_fine(chromium, plots=9)  # no metric


def test_a_script_that_the_page_does_not_know_is_not_run(killed: Path, tmp_path: Path, chromium: Page) -> None:
    """The page's own policy, should a name ever come through; and the complaints that the other tests would see."""
    text = write_report(killed).read_text(encoding="utf-8")
    changed = tmp_path / "changed.html"
    changed.write_text(text.replace("<main>", "<main><script>document.title = 'run'</script>"), encoding="utf-8")
    chromium.open(changed, width=1200)
    assert chromium.evaluate("document.title") != "run"
    assert any("Content Security Policy" in one for one in chromium.complaints)
