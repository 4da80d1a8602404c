"""Every example runs as its first lines say, learns, and gives the same with another number of workers."""

from __future__ import annotations

import gzip
import os
import re
import struct
import subprocess
import sys
import threading
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file
from torch import Tensor, nn

import cordee
from alone import python
from cordee.core import errors
from cordee.feed.batch import Batch
from cordee.train.jobfile import load_job
from harness import Run, assert_same, command

pytestmark = pytest.mark.usefixtures("warm")

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = ROOT / "examples"
LONGEST = 79


def train(example: str, out: Path, *options: str, workers: int = 1, **settings: Any) -> Run:
    """`cordee train examples/EXAMPLE.py`, as users type it."""
    words = [word for name, value in settings.items() for word in ("--set", f"{name}={value}")]
    # One thread: more of them on few cores would wait for each other.
    common = ("--workers", str(workers), "--threads", "1", "--out", out)
    done = command("train", EXAMPLES / f"{example}.py", *common, *options, *words)
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr
    (out / "said").write_text(done.stdout + done.stderr)
    return Run(out)


def assert_learns(run: Run, share: float) -> None:
    """The loss of the last steps is at most this share of that of the first."""
    assert np.mean(run.losses[-3:]) < share * run.losses[0], run.losses


def test_each_is_short_and_says_how_to_run_it() -> None:
    for path in sorted(EXAMPLES.glob("*.py")):
        text = path.read_text(encoding="utf-8")
        assert len(text.splitlines()) <= LONGEST, path.name
        if path.name != "digits.py":
            assert f"examples/{path.name}" in text.split('"""')[1], path.name


def test_the_page_has_a_section_for_each() -> None:
    page = (ROOT / "docs" / "how-to" / "examples.md").read_text(encoding="utf-8")
    sections = re.findall(r"^## .*\(`(\w+\.py)`\)$", page, re.MULTILINE)
    assert sorted(sections) == sorted(path.name for path in EXAMPLES.glob("*.py"))


def test_digits(tmp_path: Path) -> None:
    one = train("digits", tmp_path / "one")
    assert_learns(one, 0.85)
    assert_same(train("digits", tmp_path / "three", workers=3), one, loss=1e-5, tensor=None)


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_the_demo_ends_with_a_good_model(seed: int, tmp_path: Path) -> None:
    """What `make demo` runs, with seeds of its own: no lucky one."""
    (words,) = re.findall(r"cordee train examples/digits.py (.*)", (ROOT / "Makefile").read_text(encoding="utf-8"))
    settings = dict(re.findall(r"--set (\w+)=(\S+)", words))
    workers = int(re.findall(r"--workers (\d+)", words)[0])
    demo = train("digits", tmp_path / "demo", workers=workers, seed=seed, **settings)
    assert demo.result["steps"] <= 120  # as short as it was
    assert demo.result["test"]["accuracy"] >= 0.97


# ------------------------------------------------------------- mnist


def write_idx(path: Path, array: np.ndarray) -> None:
    head = struct.pack(">BBBB", 0, 0, 8, array.ndim) + struct.pack(f">{array.ndim}I", *array.shape)
    path.write_bytes(head + array.astype(np.uint8).tobytes())


@pytest.fixture(scope="module")
def small_mnist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Four files in MNIST's form, made of the digits that come with the package."""
    folder = tmp_path_factory.mktemp("mnist")
    every = cordee.data.digits(validation=0, test=0).train.gather(np.arange(1_200))
    images = (255 * every["x"].numpy()).reshape(-1, 8, 8).repeat(3, axis=1).repeat(3, axis=2)
    images, labels = np.pad(images, ((0, 0), (2, 2), (2, 2))), every["y"].numpy()
    for name, rows in (("train", slice(0, 1_000)), ("t10k", slice(1_000, 1_200))):
        write_idx(folder / f"{name}-images-idx3-ubyte", images[rows])
        write_idx(folder / f"{name}-labels-idx1-ubyte", labels[rows])
    return folder


def test_mnist_in_small(small_mnist: Path, tmp_path: Path) -> None:
    one = train("mnist", tmp_path / "one", data=small_mnist, epochs=3)
    assert_learns(one, 0.2)
    assert one.result["test"]["accuracy"] > 0.8
    # A small rate: a ReLU or a maximum that rounding tips over changes a gradient by a percent, and steps multiply it.
    slow = {"data": small_mnist, "lr": 1e-5}
    reference = train("mnist", tmp_path / "slow", **slow)
    assert_same(train("mnist", tmp_path / "three", workers=3, **slow), reference, loss=1e-4, tensor=None)


class Server(ThreadingHTTPServer):
    """Serves a folder, compressed as the mirror does, and keeps what it was asked for."""

    def __init__(self, folder: Path) -> None:
        self.asked: list[str] = []
        super().__init__(("127.0.0.1", 0), partial(Handler, directory=str(folder)))


class Handler(SimpleHTTPRequestHandler):
    server: Server

    def log_message(self, *words: Any) -> None:
        self.server.asked.append(self.path)


@pytest.fixture
def mirror(small_mnist: Path, tmp_path: Path) -> Iterator[Server]:
    folder = tmp_path / "mirror"
    folder.mkdir()
    for path in small_mnist.iterdir():
        (folder / f"{path.name}.gz").write_bytes(gzip.compress(path.read_bytes()))
    server = Server(folder)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def test_mnist_is_fetched_once(mirror: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    address = f"http://127.0.0.1:{mirror.server_port}"
    run = train("mnist", tmp_path / "run", workers=3, mirror=address, epochs=1)
    assert run.result["samples"] == 900  # the rest of 1,000 is held out
    assert len(mirror.asked) == len(set(mirror.asked)) == 4
    train("mnist", tmp_path / "again", workers=2, mirror=address, epochs=1)
    assert len(mirror.asked) == 4


def test_mnist_that_is_nowhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    nobody = "http://127.0.0.1:9"
    done = command("train", EXAMPLES / "mnist.py", "--out", tmp_path / "run", "--set", f"mirror={nobody}")
    assert done.returncode == errors.DataError.code, done.stderr
    for word in (str(tmp_path / "cache"), nobody, "train-images-idx3-ubyte.gz", "--set data=FOLDER"):
        assert word in done.stderr
    assert "Traceback" not in done.stderr
    done = command("train", EXAMPLES / "mnist.py", "--out", tmp_path / "run", "--set", f"data={tmp_path}")
    assert done.returncode == errors.DataError.code, done.stderr
    assert str(tmp_path / "train-images-idx3-ubyte") in done.stderr
    assert "Traceback" not in done.stderr


@pytest.fixture
def real_mnist() -> Path:
    """MNIST itself, where this machine has it."""
    named = os.environ.get("CORDEE_TEST_DATA")
    folder = (Path(named) if named else ROOT.parent / "shared" / "data") / "mnist"
    if not list(folder.glob("train-images*")):
        pytest.skip(f"MNIST is not in {folder}: name the folder that holds mnist/ with CORDEE_TEST_DATA")
    return folder


def test_mnist_begins_to_learn(real_mnist: Path, tmp_path: Path) -> None:
    run = train("mnist", tmp_path / "run", workers=2, data=real_mnist, epochs=1, steps_per_epoch=60)
    assert run.result["test"]["accuracy"] > 0.93


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_mnist_is_learnt(real_mnist: Path, tmp_path: Path) -> None:
    words = ["train", EXAMPLES / "mnist.py", "--workers", "2", "--out", tmp_path / "run", "--set", f"data={real_mnist}"]
    subprocess.run([sys.executable, "-m", "cordee", *map(str, words)], timeout=600, check=True)
    assert Run(tmp_path / "run").result["test"]["accuracy"] > 0.98


# ------------------------------------------------------------- the others


CIFAR = {"width": 4, "batch": 64, "steps_per_epoch": 4, "epochs": 2}


@pytest.mark.slow
def test_cifar_sees_the_same_images_on_any_number_of_workers(tmp_path: Path) -> None:
    # A small rate, for the same reason as above: the images, and so the losses, are another matter.
    one = train("cifar_resnet18", tmp_path / "one", **CIFAR, lr=1e-4)
    three = train("cifar_resnet18", tmp_path / "three", **CIFAR, lr=1e-4, workers=3)
    assert_same(three, one, loss=1e-4, tensor=None)
    assert (tmp_path / "three" / "said").read_text().count("these images are random") == 1


class Witness(nn.Module):
    """A model that keeps what it was given."""

    def forward(self, x: Tensor) -> Tensor:
        self.seen = x
        return torch.zeros(len(x), 10)


def test_cifar_shifts_and_mirrors_for_training_only(tmp_path: Path) -> None:
    job = load_job(EXAMPLES / "cifar_resnet18.py", {"seed": "3"})
    batch = Batch(np.arange(40), job.data.train.gather(np.arange(40)))
    witness = Witness()
    job.compute(witness.eval(), batch)
    assert torch.equal(witness.seen, batch.x)
    job.compute(witness.train(), batch)
    padded = nn.functional.pad(batch.x, (4, 4, 4, 4))
    shifts = set()
    for image, whole in zip(witness.seen, padded, strict=True):
        windows = {(top, left): whole[:, top : top + 32, left : left + 32] for top in range(9) for left in range(9)}
        found = [
            (*place, mirrored)
            for place, window in windows.items()
            for mirrored in (False, True)
            if torch.equal(image, window.flip(2) if mirrored else window)
        ]
        assert len(found) == 1
        shifts.add(found[0])
    assert len(shifts) > 20
    for part in (0, 1):
        assert {shift[part] for shift in shifts} == set(range(9))
    assert {shift[2] for shift in shifts} == {False, True}


@pytest.mark.slow
def test_cifar_learns_from_files(tmp_path: Path) -> None:
    """Records in CIFAR-10's form: one byte for the class, then the image; here the class is its brightness."""
    random = np.random.default_rng(0)
    for name in (*(f"data_batch_{number}" for number in range(1, 6)), "test_batch"):
        y = random.integers(0, 10, 100)
        images = random.integers(0, 128, (100, 3_072)) + 12 * y[:, None]
        np.concatenate([y[:, None], images], axis=1).astype(np.uint8).tofile(tmp_path / f"{name}.bin")
    run = train("cifar_resnet18", tmp_path / "run", workers=2, data=tmp_path, width=4, batch=50, epochs=2)
    assert run.result["samples"] == 2 * 500
    assert_learns(run, 0.9)
    assert run.result["test"]["top5"] >= run.result["test"]["top1"]
    assert "random" not in (tmp_path / "run" / "said").read_text()


def test_cifar_that_is_not_there(tmp_path: Path) -> None:
    done = command("train", EXAMPLES / "cifar_resnet18.py", "--out", tmp_path / "run", "--set", "data=nowhere")
    assert done.returncode == errors.JobError.code, done.stderr
    assert "nowhere/data_batch_1.bin" in done.stderr and "Traceback" not in done.stderr


def test_gpt(tmp_path: Path) -> None:
    small = {"files": 12, "width": 32, "layers": 1, "steps_per_epoch": 15, "epochs": 2}
    one = train("gpt", tmp_path / "one", **small)
    assert_learns(one, 0.8)
    assert one.result["validation"]["bits_per_byte"] == pytest.approx(one.result["validation"]["loss"] / np.log(2))
    assert_same(train("gpt", tmp_path / "two", workers=2, **small), one, loss=1e-4, tensor=None)
    said = python(EXAMPLES / "gpt.py", tmp_path / "two", "def ")
    assert said.startswith("def ") and len(said.encode()) > 400


@pytest.mark.thinned(3)
@pytest.mark.parametrize(
    ("example", "plan"), [("gpt", "tensor=2"), ("lstm", "shard=params"), ("mnist", "pipeline=2,micro_batches=1")]
)
def test_over_two_workers(small_mnist: Path, tmp_path: Path, example: str, plan: str) -> None:
    small: dict[str, Any] = {
        "gpt": {"files": 4, "width": 32, "layers": 1, "steps_per_epoch": 4},
        "lstm": {"width": 32, "steps_per_epoch": 4},
        "mnist": {"data": small_mnist, "steps_per_epoch": 4, "lr": 1e-5},
    }[example] | {"epochs": 1}
    one = train(example, tmp_path / "one", **small)
    assert_same(train(example, tmp_path / "two", "--plan", plan, workers=2, **small), one, loss=1e-4, tensor=None)


def test_gpt_on_a_text_of_your_own(tmp_path: Path) -> None:
    (tmp_path / "text").write_text("a team team " * 2_000)
    small = {"text": tmp_path / "text", "width": 32, "layers": 1, "epochs": 3, "batch": 16}
    assert_learns(train("gpt", tmp_path / "run", **small), 0.7)


def test_lstm(tmp_path: Path) -> None:
    small = {"width": 32, "steps_per_epoch": 15, "epochs": 2, "lr": 1e-2}
    one = train("lstm", tmp_path / "one", **small)
    assert_learns(one, 0.7)
    assert one.result["validation"]["bits_per_letter"] == pytest.approx(one.result["validation"]["loss"] / np.log(2))
    three = train("lstm", tmp_path / "three", "--plan", "proportions=5:3:2", workers=3, **small)
    assert_same(three, one, loss=1e-4, tensor=None)


def test_vae(tmp_path: Path) -> None:
    """The draws differ, and nothing else does: the curves agree, not the numbers."""
    one = train("vae", tmp_path / "one", epochs=10)
    assert_learns(one, 0.7)
    two = train("vae", tmp_path / "two", workers=2, epochs=10)
    assert two.losses != one.losses
    np.testing.assert_allclose(two.losses, one.losses, rtol=0.1)
    assert two.result["order_sha256"] == one.result["order_sha256"]
    assert two.result["test"]["squared_error"] == pytest.approx(one.result["test"]["squared_error"], rel=0.2)
    assert len(python(EXAMPLES / "vae.py", tmp_path / "two").splitlines()) == 3 * 9


def test_own_loop(tmp_path: Path) -> None:
    alone, shared = tmp_path / "alone.safetensors", tmp_path / "shared.safetensors"
    first = python(EXAMPLES / "own_loop.py", "--epochs", "1", "--save", alone)
    words = ("--workers", "2", "--threads", "1", "--out", tmp_path / "run", "--epochs", "1", "--save", shared)
    done = command("run", EXAMPLES / "own_loop.py", *words)
    assert done.returncode == 0, done.stderr
    one, two = load_file(alone), load_file(shared)
    assert one.keys() == two.keys()
    for name in one:
        np.testing.assert_allclose(two[name], one[name], atol=1e-5, err_msg=name)
    assert done.stdout.count("the critic's loss") == 1
    longer = python(EXAMPLES / "own_loop.py", "--epochs", "15", "--save", alone)
    assert distance(longer) < 0.6 * distance(first)


def distance(said: str) -> float:
    found = re.search(r"by ([0-9.]+) a pixel", said)
    assert found, said
    return float(found[1])


# ------------------------------------------------------------- table


def test_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CORDEE_CACHE", str(tmp_path / "cache"))
    one = train("table", tmp_path / "one")
    assert_learns(one, 0.4)
    assert one.result["test"]["accuracy"] > 0.7
    assert_same(train("table", tmp_path / "three", workers=3), one, loss=1e-4, tensor=None)
    lines = python(EXAMPLES / "table.py", str(tmp_path / "one")).splitlines()
    assert [line.rpartition(": ")[2].split()[0] for line in lines] == ["pear", "plum"]
    assert len((EXAMPLES / "table.py").read_text(encoding="utf-8").splitlines()) < 40
