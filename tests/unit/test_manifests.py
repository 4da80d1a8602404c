"""What `cordee deploy kubernetes` writes, checked against the schemas of Kubernetes."""

from __future__ import annotations

import stat
from pathlib import Path
from typing import Any

import pytest
import yaml

from cordee.core.errors import UsageError
from cordee.core.plan import Plan
from cordee.runtime.engines.kubernetes import Settings, has_ended, run
from cordee.runtime.engines.manifests import Deployment, manifests, recipe, secret, written
from cordee.runtime.launch import Launch
from cordee.runtime.spec import Target
from harness import command, job_file

FULL = Deployment(
    *("digits", "registry.example/digits:1", "digits.py", 8, ("--set", "epochs=2"), 4),
    *("16Gi", 2, {"pool": "gpu"}, ("spot",), "50Gi", "shared", 300),
)


def documents(given: Deployment) -> list[dict[str, Any]]:
    """As `kubectl` reads them."""
    return list(yaml.safe_load_all(written([*manifests(given), secret(given, "x" * 64)])))


@pytest.mark.parametrize("given", [FULL, Deployment("one", "image", "job.py", 1)])
def test_all_of_it_is_what_kubernetes_takes(given: Deployment) -> None:
    """No field is unknown, and none is of another type."""
    validate = pytest.importorskip("kubernetes_validate").validate
    for document in documents(given):
        validate(document, "1.31", strict=True)


def test_the_schema_check_can_fail() -> None:
    validate = pytest.importorskip("kubernetes_validate")
    job = documents(FULL)[2]
    job["spec"]["template"]["spec"]["containers"][0]["resource"] = {}
    with pytest.raises(validate.ValidationError):
        validate.validate(job, "1.31", strict=True)


def test_what_the_pods_are() -> None:
    service, claim, job, _ = documents(FULL)
    pod = job["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    assert job["spec"]["completions"] == job["spec"]["parallelism"] == 4
    assert job["spec"]["completionMode"] == "Indexed" and pod["subdomain"] == service["metadata"]["name"]
    assert service["spec"]["clusterIP"] == "None" and claim["spec"]["accessModes"] == ["ReadWriteMany"]
    assert "first=digits-0.digits:29400" in container["command"]
    assert container["resources"] == {
        "requests": {"cpu": "2", "memory": "16Gi"},
        "limits": {"memory": "16Gi", "nvidia.com/gpu": 2},
    }
    assert pod["nodeSelector"] == {"pool": "gpu"} and pod["terminationGracePeriodSeconds"] == 300
    assert [one["key"] for one in pod["tolerations"]] == ["spot", "nvidia.com/gpu"]


def test_the_token_is_in_the_secret_alone() -> None:
    *others, secret = documents(FULL)
    assert secret["stringData"] == {"token": "x" * 64}
    assert "x" * 64 not in written(others) + recipe(FULL)


@pytest.mark.parametrize(
    ("given", "word"),
    [({"name": "Digits"}, "lower-case"), ({"pods": 9}, "9 hosts, but --workers 8"), ({"grace": 0}, "at least")],
)
def test_what_kubernetes_would_refuse(given: dict[str, Any], word: str) -> None:
    with pytest.raises(UsageError, match=word):
        Deployment(**{"name": "a", "image": "b", "job": "c.py", "workers": 8, **given})


def test_the_command_writes_a_folder_and_prints_no_token(tmp_path: Path) -> None:
    asked = ("deploy", "kubernetes", job_file("mlp"), "--image", "registry.example/mlp:1", "--workers", "2")
    out = tmp_path / "k8s"
    assert "--trusted-network" in command(*asked, "--out", out).stderr and not out.exists()
    done = command(*asked, "--out", out, "--trusted-network")
    assert done.returncode == 0, done.stderr
    assert sorted(one.name for one in out.iterdir()) == ["Dockerfile", "mlp.py", "run.yaml", "secret.yaml"]
    assert stat.S_IMODE((out / "secret.yaml").stat().st_mode) == 0o600
    token = yaml.safe_load((out / "secret.yaml").read_text())["stringData"]["token"]
    assert len(token) == 64 and token not in done.stdout + done.stderr
    again = command(*asked, "--out", out, "--trusted-network")
    assert again.returncode == 2 and "holds Dockerfile, run.yaml, secret.yaml already" in again.stderr


def test_outside_of_a_pod(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="JOB_COMPLETION_INDEX"):
        run(Launch(Target("job", "x.py"), 1, Plan(), tmp_path), Settings(), lambda event: None, None)
    assert not has_ended(tmp_path)
