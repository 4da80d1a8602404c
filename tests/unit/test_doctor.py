"""What the doctor makes of readings: states, advice and exit codes, without looking at this machine."""

from __future__ import annotations

import errno
import importlib.metadata
import os
import socket
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from cordee.cli.doctor import summary
from cordee.core.cgroup import MemoryLimit
from cordee.core.errors import RendezvousError, SecurityError
from cordee.diagnose import machine as machine
from cordee.diagnose import network as network
from cordee.diagnose import software as software
from cordee.diagnose.check import Check
from cordee.diagnose.child import Ended
from cordee.diagnose.doctor import exit_code, run_look
from cordee.diagnose.number_format import NumberFormat
from cordee.diagnose.software import TorchLook

GIB = 1 << 30


def assert_says(check: Check, state: str, *words: str) -> None:
    """It has this state and all these words, and an advice unless all is well."""
    assert check.state == state, check
    for word in words:
        assert word in f"{check.found} {check.advice}", check
    assert check.state == "ok" or check.advice


# ------------------------------------------------------------- the machine


@pytest.mark.parametrize(
    ("count", "quota", "state", "words"),
    [
        (8, None, "ok", ["8 cores", "no quota"]),
        (1, None, "ok", ["1 core to run on"]),
        (2, 4.0, "ok", ["quota of 4"]),
        (8, 2.5, "warning", ["quota of 2.5", "--workers 2 --threads 1", "--workers 1 --threads 2"]),
        (2, 0.3, "warning", ["quota of 0.3", "--workers 1"]),
    ],
)
def test_cores(count: int, quota: float | None, state: str, words: list[str]) -> None:
    assert_says(machine.judge_cores(count, quota), state, *words)


@pytest.mark.parametrize(
    ("available", "limit", "state", "words"),
    [
        (20 * GIB, None, "ok", ["20.0 GiB available"]),
        (20 * GIB, MemoryLimit(8 * GIB, GIB), "ok", ["may use 8.0 GiB", "uses 1.0 GiB"]),
        (20 * GIB, MemoryLimit(8 * GIB, 7 * GIB), "warning", ["1.0 GiB are left", "--workers"]),
        (GIB, None, "warning", ["1.0 GiB are left"]),
        (20 * GIB, MemoryLimit(GIB, 2 * GIB), "warning", ["0 MiB are left"]),
    ],
)
def test_memory(available: int, limit: MemoryLimit | None, state: str, words: list[str]) -> None:
    assert_says(machine.judge_memory(available, limit), state, *words)


def test_room_in_shared_memory_and_on_disk(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    for free, memory, disk in ((5 * GIB, "ok", "ok"), (64 << 20, "warning", "warning")):
        monkeypatch.setattr(machine.shutil, "disk_usage", lambda path, free=free: SimpleNamespace(total=GIB, free=free))
        assert_says(machine.check_shared_memory(), memory, "free of 1.0 GiB", *(["--shm-size"] * (memory != "ok")))
        assert_says(machine.check_disk(), disk, str(tmp_path), *(["--out"] * (disk != "ok")))
    monkeypatch.setattr(os, "access", lambda *given: False)
    assert_says(machine.check_disk(), "warning", "cannot be written", "--out")


def test_the_compiler(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("CXX", "icpx -O2")
    assert_says(machine.check_compiler(), "warning", "CXX=icpx -O2", "unset")
    monkeypatch.delenv("CXX")
    assert_says(machine.check_compiler(), "warning", "g++", "compile=true")


def test_cxx_with_options_is_found_by_its_first_word(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    program = tmp_path / "myc++"
    program.write_text("#!/bin/sh\n")
    program.chmod(0o700)
    monkeypatch.setenv("CXX", f"{program} -O2")
    assert machine.check_compiler().found == str(program)


# ------------------------------------------------------------- the software


def test_packages_that_lack_are_errors(monkeypatch: pytest.MonkeyPatch) -> None:
    assert software.check_packages().state == "ok"

    def version(name: str) -> str:
        if name not in there:
            raise importlib.metadata.PackageNotFoundError(name)
        return there[name]

    needed = ["torch>=2.10", "numpy>=1.26", "tables", "ray; extra == 'ray'", "local>=2.10"]
    there = {"torch": "2.9.0", "local": "2.13.0+cpu"}
    monkeypatch.setattr(importlib.metadata, "requires", lambda name: needed)
    monkeypatch.setattr(importlib.metadata, "version", version)
    wanted = "pip install 'torch>=2.10' 'numpy>=1.26' 'tables'"
    check = software.check_packages()
    assert_says(check, "error", "torch 2.9.0", "numpy is not installed", wanted)
    assert check.advice.endswith(wanted)
    del needed[:3]
    assert_says(software.check_packages(), "ok", "local 2.13.0+cpu")


GPU = TorchLook("2.11.0", "13.0", True, True, (("H200", 140 * GIB),))


@pytest.mark.parametrize(
    ("look", "there", "state", "words"),
    [
        (GPU, 1, "ok", ["cuda:0 H200 (140.0 GiB)"]),
        (TorchLook("2.11", "13.0", True, False, (("A", GIB), ("B", GIB))), 2, "warning", ["cuda:1 B", "NCCL"]),
        (TorchLook("2.13+cpu", gloo=True, cuda_problem="Torch not compiled"), 0, "ok", ["CPU only"]),
        (TorchLook("2.11", "13.0", gloo=True, cuda_problem="Found no NVIDIA driver"), 0, "ok", ["CPU only"]),
        (TorchLook(problem="killed"), 1, "warning", ["not checked", "torch"]),
        (TorchLook("2.13+cpu", gloo=True), 2, "error", ["2 NVIDIA GPUs", "built for CPUs", "--device cpu"]),
        (
            TorchLook("2.11", "13.0", gloo=True, cuda_problem="The NVIDIA driver on your system is too old"),
            1,
            "error",
            ["1 NVIDIA GPU,", "driver on your system is too old", "nvidia-smi"],
        ),
    ],
)
def test_devices(look: TorchLook, there: int, state: str, words: list[str]) -> None:
    assert_says(software.judge_devices(look, there), state, *words)


def test_a_variable_that_hides_the_gpus_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    look = TorchLook("2.11", "13.0", gloo=True, cuda_problem="No CUDA GPUs are available")
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    assert "CUDA_VISIBLE" not in software.judge_devices(look, 1).advice
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "5")
    assert_says(software.judge_devices(look, 1), "error", "No CUDA GPUs", "CUDA_VISIBLE_DEVICES=5")


def test_torch_that_cannot_be_loaded_or_lacks_gloo_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def read(ended: Ended) -> TorchLook:
        monkeypatch.setattr(software, "run_child", lambda *given, **others: ended)
        return software.ask_torch()

    assert_says(software.judge_torch(GPU), "ok", "2.11.0, built for CUDA 13.0; gloo, NCCL")
    assert_says(software.judge_torch(TorchLook("2.11")), "error", "no gloo")
    broken = read(Ended(1, "", "Traceback\nImportError: libtorch.so: cannot open\n"))
    assert_says(software.judge_torch(broken), "error", "ImportError: libtorch.so")
    assert_says(software.judge_torch(read(Ended(-4))), "error", "SIGILL")
    assert_says(software.judge_torch(read(Ended(0, "hello"))), "error", "makes no sense")
    answer = '{"version": "2", "cuda": "", "gloo": true, "nccl": false, "gpus": [["A", 1]], "cuda_problem": ""}'
    assert read(Ended(0, f"a warning\n{answer}\n")) == TorchLook("2", gloo=True, gpus=(("A", 1),))


def test_torch_answers_from_a_process_of_its_own() -> None:
    answer = software.ask_torch()
    assert (answer.problem, answer.version, answer.gloo) == ("", torch.__version__, True)


def test_formats_are_never_errors_since_fp32_remains() -> None:
    variable = {"ONEDNN_MAX_CPU_ISA": "AVX512_CORE_BF16"}
    judge = software.judge_format
    assert_says(judge("bf16", None), "ok", "not measured", "--quick")
    assert_says(judge("bf16", NumberFormat("bf16", "cpu", True, 2.0)), "ok", "2.0 times as fast")
    assert_says(judge("bf16", NumberFormat("bf16", "cpu", True, 0.5)), "ok", "2.0 times as long", "precision=fp32")
    patched = NumberFormat("bf16", "cpu", True, 0.5, variable, "SIGILL")
    assert_says(judge("bf16", patched), "warning", "export ONEDNN_MAX_CPU")
    assert_says(judge("bf16", NumberFormat("bf16", "cpu", False, 0.0, reason="SIGILL")), "warning", "precision=fp32")


# ------------------------------------------------------------- the network


def test_interfaces(monkeypatch: pytest.MonkeyPatch) -> None:
    def check(**addresses: str) -> Check:
        given = {name: [SimpleNamespace(family=socket.AF_INET, address=one)] for name, one in addresses.items()}
        monkeypatch.setattr(network.psutil, "net_if_addrs", lambda: given)
        monkeypatch.setattr(
            network.psutil, "net_if_stats", lambda: {one: SimpleNamespace(isup=one != "off") for one in given}
        )
        return network.check_interfaces()

    found = check(lo="127.0.0.1", eth0="192.0.2.7", off="192.0.2.8")
    assert_says(found, "ok", "for other hosts: eth0 192.0.2.7", "--rendezvous")
    assert "lo" not in found.found and "192.0.2.8" not in found.found
    assert_says(check(lo="127.0.0.1"), "ok", "no IPv4 address for other hosts")


def test_a_busy_port_names_its_holder() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        number = server.getsockname()[1]
        busy = network.check_port(number)
    assert_says(busy, "error", str(number), f"(process {os.getpid()})", "another port")
    assert busy.code == RendezvousError.code
    assert_says(network.check_port(number), "ok", "is free")


def test_a_port_that_cannot_be_had() -> None:
    refused = OSError(errno.EACCES, "Permission denied")
    assert_says(network.judge_port(80, refused), "error", "Permission denied", "root")
    taken = OSError(errno.EADDRINUSE, "Address already in use")
    with socket.create_server(("127.0.0.1", 0)) as server:
        free = server.getsockname()[1]
    assert_says(network.judge_port(free, taken), "error", "may not see")


def test_the_token_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CORDEE_TOKEN_FILE", raising=False)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    assert_says(network.check_token(None), "ok", "none yet", "cordee token")
    path = tmp_path / "token"
    assert_says(network.check_token(path), "error", "No such file")
    path.write_text("0" * 64)
    path.chmod(0o640)
    open_to_others = network.check_token(path)
    assert_says(open_to_others, "error", f"chmod 600 {path}")
    assert open_to_others.code == SecurityError.code
    path.chmod(0o600)
    assert_says(network.check_token(path), "ok", str(path))
    monkeypatch.setenv("CORDEE_TOKEN_FILE", str(tmp_path / "other"))
    assert_says(network.check_token(None), "error", str(tmp_path / "other"))


def test_what_is_not_encrypted_is_said() -> None:
    assert_says(network.describe_protection(), "ok", "gloo and NCCL", "--trusted-network", "TLS")


# ------------------------------------------------------------- the twin


def test_what_the_twin_lacks_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    def check(ended: Ended) -> Check:
        monkeypatch.setattr(network, "run_child", lambda *given, **others: ended)
        return network.check_twin()

    assert_says(check(Ended(0)), "ok", "can be made")
    bare = check(Ended(1, "", "unshare: Operation not permitted"))
    assert_says(bare, "warning", "Operation not permitted", "cordee twin", "root", "iproute2", "NET_ADMIN", "sch_tbf")


# ------------------------------------------------------------- the whole


def test_a_look_that_fails_itself_is_a_warning_and_says_so() -> None:
    def strange() -> Check:
        raise ZeroDivisionError("no cores at all")

    (check,) = run_look("cores", strange)
    assert_says(check, "warning", "this check itself failed", "ZeroDivisionError: no cores at all")
    assert check.name == "cores"


def test_the_exit_code_is_that_of_the_first_error() -> None:
    well, so_so = Check("a", "ok", "b"), Check("c", "warning", "d", "e")
    security, busy = (
        Check("f", "error", "g", "h", SecurityError.code),
        Check("i", "error", "j", "k", RendezvousError.code),
    )
    assert exit_code([]) == exit_code([well, so_so]) == 0
    assert exit_code([well, so_so, security, busy]) == SecurityError.code
    assert exit_code([Check("l", "error", "m", "n")]) == 1


def test_the_summary_counts() -> None:
    well, so_so, bad = Check("a", "ok", "b"), Check("c", "warning", "d", "e"), Check("f", "error", "g", "h")
    assert summary([well, well]) == "2 checks: all well"
    assert summary([well, so_so]) == "2 checks: 1 warning"
    assert summary([bad, so_so, bad]) == "3 checks: 2 errors and 1 warning"
