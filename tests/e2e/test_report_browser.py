"""Pages in a real browser: on a desk and on a phone, light and dark. Needs Chromium; `CHROMIUM` may name it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from msgspec import to_builtins

from browser import Page, browser, find_browser
from cordee.core.scaling import Timed, figures
from cordee.split.schedules import table_of
from cordee.split.schedules.costs import Costs
from cordee.split.schedules.forecast import forecast
from cordee.split.schedules.simulate import simulate
from cordee.watch.report import write_report
from cordee.watch.scaling import Setup, as_page
from records import T0, end, epoch, event, hostile_run, long_run, start, step, times, usage, write

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
    assert_fine(chromium, plots=13)
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
    assert_fine(chromium, plots=13)
    over_time = chromium.evaluate("document.querySelector('canvas').toDataURL()")
    assert over_time != before
    chromium.evaluate("document.getElementById('log').click()")
    assert chromium.evaluate("document.querySelector('canvas').toDataURL()") != over_time
    choose = "const list = document.getElementById('whose'); list.value = '2'; list.dispatchEvent(new Event('change'))"
    chromium.evaluate(choose)
    chromium.evaluate("document.querySelectorAll('details').forEach((one) => { one.open = true })")
    assert_fine(chromium, plots=13)
    assert "order (SHA-256)" in chromium.evaluate(EVERYTHING)


def test_a_window_that_becomes_narrow(killed: Path, chromium: Page) -> None:
    chromium.open(write_report(killed), width=1200)
    chromium.call("Emulation.setDeviceMetricsOverride", width=420, height=800, deviceScaleFactor=2, mobile=True)
    chromium.evaluate("new Promise((done) => setTimeout(done, 300))")
    assert_fine(chromium, plots=13)


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
    shares = legend(chromium, "shares")
    assert shares.pop("36 others") == "60 %" and shares.pop("step") == "600"
    assert len(shares) == 24 and set(shares.values()) == {"1.67 %"}  # of the whole step, not of what is shown
    choices = chromium.evaluate("[...document.getElementById('whose').options].map((one) => one.value)")
    assert len(choices) == 25  # nobody can be chosen of whom the page knows nothing


def legend(page: Page, plot: str, place: int = 0) -> dict[str, str]:
    """What the legend of a plot says, by its labels."""
    lines = f"document.querySelectorAll('[data-plot={plot}]')[{place}].querySelectorAll('.u-series')"
    cells = "[one.querySelector('.u-label').textContent, one.querySelector('.u-value').textContent]"
    return dict(page.evaluate(f"[...{lines}].map((one) => {cells})"))


# How many pixels of a colour each column of a plot's canvas has.
BY_COLUMN = """
((plot, name) => {
  const canvas = document.querySelector(`[data-plot=${plot}] canvas`), context = canvas.getContext("2d");
  const wanted = getComputedStyle(document.documentElement).getPropertyValue("--" + name).trim();
  const colour = [1, 3, 5].map((at) => parseInt(wanted.slice(at, at + 2), 16));
  const { data, width, height } = context.getImageData(0, 0, canvas.width, canvas.height);
  const counts = Array(width).fill(0);
  for (let at = 0; at < width * height; at += 1)
    if (colour.every((value, part) => data[4 * at + part] === value)) counts[at % width] += 1;
  return counts;
})
"""


def lost_one(folder: Path) -> Path:
    """Three workers, of which one is lost after the fifth of ten steps; it used something until then."""
    made = start(0.0, 3)
    for number in range(1, 11):
        at, there = 2.0 + number / 10, 3 if number <= 5 else 2
        made.append(step(at, number))
        for one in range(there):
            made.append(times(at, one, number - 1, [at - 0.05], (5.0, 40.0, 55.0, 0.0), 12 // there))
            made.append(usage(at, one, 0.5 * at))
        if number == 5:
            made.append(event("failure", at + 0.01, worker=2, host="here", reason="killed", left=2))
            made.append(event("regroup", at + 0.02, generation=2, workers=[0, 1], ms=90.0))
    return write(folder, [*made, event("end", 3.1, reason="completed", code=0, message="")])


@pytest.mark.parametrize("axis", ["step", "seconds"])
def test_a_loss_changes_the_shares_at_once(axis: str, tmp_path: Path, chromium: Page) -> None:
    chromium.open(write_report(lost_one(tmp_path)), width=1200)
    chromium.evaluate(f"document.querySelector('input[value={axis}]').click()")
    counts = [count for count in chromium.evaluate(f"{BY_COLUMN}('shares', 'c0')") if count]
    third, half = min(counts, key=lambda count: abs(count - max(counts) * 2 / 3)), max(counts)
    between = [count for count in counts if third + 2 < count < half - 2]
    assert half == pytest.approx(1.5 * third, abs=3) and len(between) <= 4, between  # the mark of the loss lies there
    assert counts.count(third) == pytest.approx(counts.count(half), rel=0.2)  # five steps and five steps


def test_the_legend_forgets_who_has_gone(tmp_path: Path, chromium: Page) -> None:
    chromium.open(write_report(lost_one(tmp_path)), width=1200)
    for place in range(2):  # processor, memory
        said = legend(chromium, "usage", place)
        assert said["worker 2"] == "–" and "–" not in (said["worker 0"], said["worker 1"])
    assert legend(chromium, "shares")["worker 2"] == "–"


@pytest.mark.parametrize("steps", [1, 5000])
def test_learning_rate_gradient_norm_and_callbacks_are_drawn(steps: int, tmp_path: Path, chromium: Page) -> None:
    made = [*start(0.0, 1), usage(1.1, 0, 3.0)]
    for number in range(1, steps + 1):
        at = 2.0 + number / 10
        made.append(step(at, number, lr=0.5, grad_norm=2.0 + number % 2))
        made.append(times(at, 0, number - 1, [at - 0.05], (5.0, 40.0, 5.0, 0.0), 12, callbacks=50.0))
    chromium.open(write_report(write(tmp_path, [*made, usage(at, 0, 3.2), end(at + 0.1)])), width=1200)
    assert_fine(chromium, plots=10)
    assert legend(chromium, "lr")["learning rate"] == "0.5"
    norm = legend(chromium, "grad_norm")
    assert norm.get("gradient norm, mean", norm.get("gradient norm")) == ("3" if steps == 1 else "2.5")
    assert legend(chromium, "split")["callbacks"] == "50 ms"
    assert float(legend(chromium, "usage")["worker 0"]) == pytest.approx(0.2 / (at - 1.1), rel=0.01)


def test_the_training_loss_is_seen_among_many_epochs(tmp_path: Path, chromium: Page) -> None:
    made = start(0.0, 1)
    for number in range(1, 241):
        made.append(step(2.0 + number / 10, number, loss=100 / (40 + number)))
        if number % 6 == 0:
            made.append(epoch(2.0 + number / 10, number // 6 - 1, number, {"loss": 100 / (40 + number)}))
    chromium.open(write_report(write(tmp_path, made)), width=1200)
    training, validation = (sum(chromium.evaluate(f"{BY_COLUMN}('loss', '{name}')")) for name in ("c0", "c1"))
    assert training > 2 * validation


def test_a_script_that_the_page_does_not_know_is_not_run(killed: Path, tmp_path: Path, chromium: Page) -> None:
    """The page's own policy, should a name ever come through; and the complaints that the other tests would see."""
    text = write_report(killed).read_text(encoding="utf-8")
    changed = tmp_path / "changed.html"
    changed.write_text(text.replace("<main>", "<main><script>document.title = 'run'</script>"), encoding="utf-8")
    chromium.open(changed, width=1200)
    assert chromium.evaluate("document.title") != "run"
    assert any("Content Security Policy" in one for one in chromium.complaints)


def adapted(folder: Path) -> Path:
    """Two workers under sync=auto, which decides three times, and a window of pushes."""
    made = start(0.0, 2)
    for number in range(1, 31):
        at, sent = 2.0 + number / 10, 4_000_000 if number <= 10 else 1_000_000
        made.append(step(at, number))
        for one in range(2):
            parts = (5.0, 60.0, 35.0, 0.0)
            made.append(times(at, one, number - 1, [at - 0.05], parts, 6, costs=(20.0, sent, 4_000_000)))
        if number % 10 == 0:
            before, choice = ("none", "int8") if number == 10 else ("int8", "int8")
            about = {"step": number + 1, "before": before, "choice": choice, "reason": "sending takes 0.3 s"}
            numbers = {"compute_ms": 60.0, "link_mbit": 10.0 * number, "measured_ms": 95.0}
            made.append(event("decision", at, **about, **numbers, forecast_ms={"none": 300.0, "int8": 90.0}))
    made += [usage(5.0, one, 3.0, sent=10**8, bytes_=(0, 2 * 10**8, 10**7)) for one in range(2)]
    made.append(event("pushes", 5.0, worker=0, version=9, pushes=[(1, 0, 1, 0), (1, 1, 2, 2), (2, 0, 3, 2)]))
    made.append(event("traffic", 5.0, server=0, host="here", bytes_sent=10**8, bytes_near=10**7))
    return write(folder, [*made, end(5.1)])


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("width", [1200, 400])
def test_where_the_bytes_went(width: int, dark: bool, tmp_path: Path, chromium: Page) -> None:
    chromium.open(write_report(adapted(tmp_path)), width=width, dark=dark)
    assert_fine(chromium, plots=12)
    text = chromium.evaluate(EVERYTHING)
    assert "none → int8" in text and "server 0" in text
    sent = legend(chromium, "bytes")
    assert (sent["sent, MiB"], sent["without a codec, MiB"]) == ("0.954", "3.81")
    assert legend(chromium, "overlap") == {"step": "30", "hidden": "20 ms", "not hidden": "35 ms"}
    assert legend(chromium, "staleness") == {"staleness": "2", "pushes": "2"}
    assert legend(chromium, "link")["Mbit/s"] == "300"
    assert legend(chromium, "forecast") == {"step": "31", "forecast": "90", "measured": "–"}
    chromium.evaluate("document.querySelector('input[value=seconds]').click()")
    assert_fine(chromium, plots=12)
    apart = "[...document.querySelectorAll('.lane .decision, .lane .choice')].map((one) => one.title)"
    assert len(chromium.evaluate(apart)) == 3 and all("sending takes" in one for one in chromium.evaluate(apart))


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("width", [1200, 400])
@pytest.mark.parametrize("counts", [(3,), (1, 2, 4), tuple(2**power for power in range(9))], ids=len)
def test_a_scaling_page(counts: tuple[int, ...], width: int, dark: bool, tmp_path: Path, chromium: Page) -> None:
    seconds = {(count, round): 0.1 / count**0.8 * (1 + round / 50) for count in counts for round in (1, 2, 3)}
    runs = [Timed(*key, (each, each), (100, 100)) for key, each in seconds.items()]
    setup = Setup("a.py", "sync=allreduce", "strong", 3, 2, 1, "cpu", 1, 2, None, "here", {"cordee": "1"}, "today")
    page = tmp_path / "scaling.html"
    page.write_text(as_page(setup, figures(runs, oversubscribed=counts[2:])), encoding="utf-8")
    chromium.open(page, width=width, dark=dark)
    assert_fine(chromium, plots=1 if len(counts) == 1 else 2)
    shown = legend(chromium, "scaling")
    assert shown.pop("workers") == str(counts[-1])
    if len(counts) > 1:
        most = figures(runs)[-1].speed_up
        assert most is not None and float(shown["speed-up"].split()[0]) == pytest.approx(most.value, rel=0.01)
        assert float(shown["ideal"]) == counts[-1]


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("width", [1200, 400])
def test_a_pipeline(width: int, dark: bool, tmp_path: Path, chromium: Page) -> None:
    table = table_of("zero-bubble", 4, 12)
    event_ = forecast("zero-bubble", simulate(table, Costs.equal(table.stages)))
    steps = [step(2.0 + number / 10, number + 1) for number in range(5)]
    made = [*start(0.0, 2), {**to_builtins(event_), "time": T0 + 1.9}, *steps, end(5.0)]
    chromium.open(write_report(write(tmp_path, made)), width=width, dark=dark)
    assert chromium.complaints == [] and chromium.evaluate(TOO_WIDE) <= 0
    boxes = "[...document.querySelectorAll('.track i')]"
    assert chromium.evaluate(f"{boxes}.length") == 3 * 4 * 12
    shown = f"{boxes}.filter((one) => one.firstChild.offsetWidth)"
    assert chromium.evaluate(f"{shown}.length") == (3 * 4 * 12 if width > 600 else 0), "where there is room"
    assert chromium.evaluate(f"{shown}.every((one) => one.firstChild.offsetWidth <= one.clientWidth)")
    colours = chromium.evaluate(f"[...new Set({boxes}.map((one) => getComputedStyle(one).backgroundColor))]")
    assert len(colours) == 3 and "rgba(0, 0, 0, 0)" not in colours
