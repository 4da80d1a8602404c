"""Slurm, as far as no cluster is needed: the batch script, the steps, and what follows when a run was stopped."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from cordee.core.errors import UsageError
from cordee.core.plan import Plan
from cordee.runtime.engines.slurm.allocation import continuing, goes_back, outcome, own_address, step_words
from cordee.runtime.engines.slurm.settings import Settings, Spread, Submission, script
from cordee.runtime.engines.slurm.submit import submission, submit
from cordee.runtime.launch import Launch
from cordee.runtime.spec import Target

BATCH = {"ENVIRONMENT": "BATCH", "SLURM_JOB_ID": "7"}


def launch(out: Path, **more: object) -> Launch:
    target = Target("job", "jobs/mlp.py", {"samples": "500"})
    return Launch(target, 3, Plan(), out, **more)  # type: ignore[arg-type]


def written(settings: Settings, workers: int = 3) -> list[str]:
    given = Submission(("cordee", "train", "a job.py"), workers, "mlp", Path("/shared/here"), Path("/share/100% mine"))
    return script(settings, given).splitlines()


def test_the_script_asks_for_what_was_set() -> None:
    lines = written(Settings(nodes=2, partition="gpu", account="me", time="1:00:00", gpus_per_node="a100:4", mem="16G"))
    assert lines[0] == "#!/bin/bash" and lines[-1] == "exec cordee train 'a job.py'"
    for asked in (
        *("--partition=gpu", "--account=me", "--time=1:00:00", "--gpus-per-node=a100:4", "--mem=16G", "--nodes=2"),
        *("--ntasks-per-node=1", "--cpus-per-task=2", "--no-kill", "--requeue", "--signal=B:USR1@60"),
        *("--job-name=mlp", "--chdir=/shared/here", "--output='/share/100%% mine/slurm-%j.out'", "--open-mode=append"),
    ):
        assert f"#SBATCH {asked}" in lines
    assert not any("qos" in line or "exclude" in line for line in lines)


def test_a_script_without_requeue_and_with_lines_of_the_user() -> None:
    lines = written(Settings(requeue=False, warn=0, cpus_per_task=5, setup="module load cuda", sbatch="--licenses=x"))
    assert {"#SBATCH --no-requeue", "#SBATCH --cpus-per-task=5", "#SBATCH --licenses=x"} <= set(lines)
    assert lines[-2] == "module load cuda" and not any("--signal" in line for line in lines)


def test_settings_that_cannot_be() -> None:
    for given, word in (
        ({"partition": "a b"}, "one word"),
        ({"account": "x\n#SBATCH --wrap=y"}, "one word"),
        ({"nodes": -1}, "at least 0"),
        ({"wait": 0.0}, "above 0"),
    ):
        with pytest.raises(UsageError, match=word):
            Settings(**given)  # type: ignore[arg-type]


def test_workers_are_spread_evenly() -> None:
    assert [Spread(nodes=nodes).counts(8) for nodes in (1, 2, 3)] == [[8], [4, 4], [3, 3, 2]]
    with pytest.raises(UsageError, match="3 hosts, but --workers 2"):
        Spread(nodes=3).counts(2)


def test_the_script_runs_the_same_command(tmp_path: Path) -> None:
    given = {"workers": 3, "engine": "slurm", "engine_settings": {"nodes": "2", "dry_run": "true"}}
    words = submission(launch(tmp_path / "run", given=given, resume=True)).command
    assert words[1:3] == ("train", str(Path("jobs/mlp.py").absolute()))
    assert " ".join(words[3:]) == (
        f"--workers 3 --engine slurm --engine-set nodes=2 --out {tmp_path}/run --resume --set samples=500"
    )


def test_a_job_that_was_made_in_python_is_no_batch_job(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="inside an allocation"):
        submit(Launch(Target("sent", "x"), 1, Plan(), tmp_path), Settings())


def test_without_slurm_nothing_is_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(UsageError, match="there is no sbatch on this machine"):
        submit(launch(tmp_path / "run"), Settings())
    assert not (tmp_path / "run").exists()


def test_slurms_own_word_in_one_line_and_nothing_is_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake = tmp_path / "bin" / "sbatch"
    fake.parent.mkdir()
    fake.write_text(
        '#!/bin/sh\necho "sbatch: error: invalid partition: x" >&2\necho "sbatch: error: failed" >&2\nexit 1'
    )
    fake.chmod(0o755)
    monkeypatch.setenv("PATH", f"{fake.parent}:{os.environ['PATH']}")
    with pytest.raises(UsageError, match=r"^Slurm does not take the job: invalid partition: x; failed$"):
        submit(launch(tmp_path / "run"), Settings())
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("signals", "env", "settings", "back"),
    [
        ([signal.SIGUSR1], BATCH, Settings(), True),
        ([], BATCH, Settings(), True),
        ([signal.SIGTERM], BATCH, Settings(), False),
        ([signal.SIGUSR1, signal.SIGTERM], BATCH, Settings(), False),
        ([signal.SIGINT], {}, Settings(), False),
        ([signal.SIGUSR1], {}, Settings(), False),
        ([signal.SIGUSR1], BATCH, Settings(requeue=False), False),
    ],
)
def test_what_goes_back_into_the_queue(signals: list[int], env: dict[str, str], settings: Settings, back: bool) -> None:
    """The notice before the time ends, and preemption, which only steps are told of; never what a user stopped."""
    assert goes_back(signals, env, settings) == back


def test_a_requeued_job_goes_on_only_if_it_had_begun(tmp_path: Path) -> None:
    given = launch(tmp_path)
    assert not continuing(given, BATCH).resume
    assert not continuing(given, BATCH | {"SLURM_RESTART_COUNT": "1"}).resume


def test_a_step_holds_no_secret_and_has_all_cores_of_its_host() -> None:
    words = step_words("n2", Settings(srun="--cpu-bind=none"), {"SLURM_CPUS_PER_TASK": "4"})
    assert {"--nodelist=n2", "--cpus-per-task=4", "--overlap", "--cpu-bind=none"} <= set(words)
    assert words[-1] == "requeue"
    assert not any(word.startswith("--cpus") for word in step_words("n2", Settings(requeue=False), {}))


def test_how_a_step_has_ended() -> None:
    assert outcome(0, "n1", ["srun: error: Node failure on n1"]).code is None
    assert outcome(137, "n1", ["srun: error: n1: task 0: Killed"]).code == -signal.SIGKILL
    ended = outcome(10, "n1", ["cordee: no such file", "srun: error: n1: task 0: Exited with exit code 10"])
    assert (ended.code, ended.said) == (10, "cordee: no such file")
    assert outcome(130, "n1", []).code == 130


def test_one_host_that_is_this_one_needs_no_network() -> None:
    assert own_address(["n1"], "n1") == "127.0.0.1"
