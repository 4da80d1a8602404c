"""Our writer of safetensors files beside the format's own library."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file

from cordee.core.errors import CheckpointError
from cordee.state import files
from cordee.state.files import write_tensors

KINDS = [
    getattr(torch, name)
    for name in [
        "float64",
        "float32",
        "float16",
        "bfloat16",
        "float8_e4m3fn",
        "float8_e5m2",
        "float8_e4m3fnuz",
        "float8_e5m2fnuz",
        "int64",
        "int32",
        "int16",
        "int8",
        "uint64",
        "uint32",
        "uint16",
        "uint8",
        "bool",
    ]
]


def some(dtype: torch.dtype, *shape: int) -> torch.Tensor:
    raw = torch.randint(0, 100, (*shape, 8), dtype=torch.uint8)
    return raw.view(dtype)[..., 0].clone() if dtype != torch.bool else raw[..., 0] > 50


def test_the_library_reads_what_we_write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "_PIECE", 64)
    tensors = {str(dtype): some(dtype, 5, 7) for dtype in KINDS}
    tensors |= {"none": torch.empty(0, 3), "number": torch.tensor(2.5), "é": torch.arange(3), "t": torch.eye(3).T[1:]}
    tensors["complex"] = torch.randn(4, dtype=torch.complex64)
    written = write_tensors(tmp_path / "file", tensors, {"made": "by 'us' \"é\""})
    assert written == hashlib.sha256((tmp_path / "file").read_bytes()).hexdigest()
    read = load_file(tmp_path / "file")
    assert read.keys() == tensors.keys()
    for name, tensor in tensors.items():
        assert read[name].dtype == tensor.dtype and read[name].shape == tensor.shape
        ours, theirs = (one.contiguous().reshape(-1).view(torch.uint8) for one in (tensor, read[name]))
        assert ours.equal(theirs), name
    with safe_open(tmp_path / "file", framework="pt") as file:
        assert file.metadata() == {"made": "by 'us' \"é\""}


def test_a_conjugate_is_written_as_it_reads(tmp_path: Path) -> None:
    one = torch.randn(3, dtype=torch.complex64)
    write_tensors(tmp_path / "file", {"a": one.conj(), "b": one.to(torch.complex128).conj()})
    _, read = files.read_tensors(tmp_path / "file")
    assert torch.equal(read["a"], one.conj()) and torch.equal(read["b"], one.to(torch.complex128).conj())


def test_nothing_at_all(tmp_path: Path) -> None:
    write_tensors(tmp_path / "file", {})
    assert load_file(tmp_path / "file") == {}


def test_a_format_that_has_no_name(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"no word for torch\.quint8"):
        write_tensors(
            tmp_path / "file",
            {"a": torch.quantize_per_tensor(torch.zeros(2), 1.0, 0, torch.quint8), "b": torch.zeros(2)},
        )
    assert not (tmp_path / "file").exists()
