"""What `cordee deploy kubernetes` writes: an image's recipe and manifests, as pure functions from values to text."""

from __future__ import annotations

import platform
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib.metadata import version
from typing import Any

import yaml

from cordee.core.errors import (
    CoordinatorLost,
    CordeeError,
    DataError,
    Evicted,
    Interrupted,
    JobError,
    MixingError,
    ModelError,
    PlanError,
    SecurityError,
    UsageError,
)
from cordee.runtime.resources import spread

JOB_FOLDER = "/srv/job"
TOKEN, TOKEN_FOLDER = "token", "/srv/token"
RUNS_FOLDER = "/srv/runs"
PORT = 29400
MANIFEST, SECRET, RECIPE = "run.yaml", "secret.yaml", "Dockerfile"
GPU = "nvidia.com/gpu"
STARTED_AGAIN = (Evicted, CoordinatorLost, Interrupted)
"""Ends of a pod that do not count: another one was lost, or it was asked to leave. It is started again."""
MISTAKES = (UsageError, JobError, DataError, PlanError, ModelError, MixingError, SecurityError)
"""Ends that would come again."""
_NAME = re.compile(r"[a-z]([-a-z0-9]{0,40}[a-z0-9])?")


@dataclass(frozen=True)
class Deployment:
    """What to write manifests for."""

    name: str
    image: str
    job: str
    """The name of the job's file, which lies beside the recipe."""
    workers: int
    words: tuple[str, ...] = ()
    """More words of `cordee train`."""
    pods: int = 1
    memory: str = ""
    """Of each pod."""
    gpus: int = 0
    """Of each pod."""
    pool: Mapping[str, str] = field(default_factory=dict)
    """Labels of the nodes that pods may run on."""
    tolerations: tuple[str, ...] = ()
    storage: str = "10Gi"
    storage_class: str = ""
    grace: int = 120
    """Seconds that a pod has for the step that it is in and a checkpoint."""

    def __post_init__(self) -> None:
        """Refuse what Kubernetes would."""
        if not _NAME.fullmatch(self.name):
            raise UsageError(
                f"--name {self.name}: Kubernetes takes at most 42 lower-case letters, digits and -, a letter first"
            )
        if self.pods < 1 or self.gpus < 0 or self.grace < 1:
            raise UsageError(
                f"--pods {self.pods} --gpus {self.gpus} --grace {self.grace}: at least 1, 0 and 1 are needed"
            )
        spread(self.workers, self.pods)

    @property
    def first(self) -> str:
        """Where the first pod is found: its name under the headless service stays when it is started again."""
        return f"{self.name}-0.{self.name}:{PORT}"

    @property
    def command(self) -> list[str]:
        """What every pod runs; the token is in none of its words."""
        told = {"pods": self.pods, "first": self.first, "token": f"{TOKEN_FOLDER}/{TOKEN}"}
        asked = [word for name, value in told.items() for word in ("--engine-set", f"{name}={value}")]
        given = ("--engine", "kubernetes", "--workers", str(self.workers), "--trusted-network")
        return ["cordee", "train", self.job, *given, *asked, "--out", f"{RUNS_FOLDER}/{self.name}", *self.words]


def manifests(given: Deployment) -> list[dict[str, Any]]:
    """The service, the volume claim and the job."""
    about = _about(given)
    service = {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": about,
        "spec": {
            "clusterIP": "None",
            "publishNotReadyAddresses": True,  # the pods look for each other before they are ready
            "selector": {"batch.kubernetes.io/job-name": given.name},
            "ports": [{"name": "cordee", "port": PORT}],
        },
    }
    claim_spec: dict[str, Any] = {
        "accessModes": ["ReadWriteMany" if given.pods > 1 else "ReadWriteOnce"],
        "resources": {"requests": {"storage": given.storage}},
    }
    if given.storage_class:
        claim_spec["storageClassName"] = given.storage_class
    claim = {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": about, "spec": claim_spec}
    job = {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": about,
        "spec": {
            "completionMode": "Indexed",
            "completions": given.pods,
            "parallelism": given.pods,
            "backoffLimit": 3 * given.pods,
            "podFailurePolicy": {"rules": _rules()},
            "template": {"metadata": {"labels": about["labels"]}, "spec": _pod(given)},
        },
    }
    return [service, claim, job]


def secret(given: Deployment, token: str) -> dict[str, Any]:
    """The token, which the pods get as a file."""
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": _about(given),
        "type": "Opaque",
        "stringData": {TOKEN: token},
    }


def written(documents: Sequence[Mapping[str, Any]]) -> str:
    """As one file."""
    return yaml.safe_dump_all(map(_plain, documents), sort_keys=False, default_flow_style=False)


def recipe(given: Deployment) -> str:
    """The image's: the versions that are here."""
    python = ".".join(platform.python_version_tuple()[:2])
    return "\n".join(
        [
            "# Written by `cordee deploy kubernetes`. CORDEE may name a wheel beside this file, or another version.",
            f"FROM python:{python}-slim",
            f"RUN pip install --no-cache-dir torch=={version('torch').partition('+')[0]}",
            f"ARG CORDEE=cordee=={version('cordee')}",
            "RUN pip install --no-cache-dir $CORDEE",
            f"WORKDIR {JOB_FOLDER}",
            f"COPY {given.job} ./",
            "",
        ]
    )


def _about(given: Deployment) -> dict[str, Any]:
    return {"name": given.name, "labels": {"app.kubernetes.io/name": given.name}}


def _rules() -> list[dict[str, Any]]:
    """A mistake ends the job; neither preemption and eviction count as a failure, nor the loss of another pod."""
    return [
        {"action": "FailJob", "onExitCodes": _codes(MISTAKES)},
        {"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]},
        {"action": "Ignore", "onExitCodes": _codes(STARTED_AGAIN)},
    ]


def _codes(errors: Sequence[type[CordeeError]]) -> dict[str, Any]:
    return {"operator": "In", "values": sorted(error.code for error in errors)}


def _pod(given: Deployment) -> dict[str, Any]:
    most = spread(given.workers, given.pods)[0]
    wanted = {"cpu": str(most)} | ({"memory": given.memory} if given.memory else {})
    limits = ({"memory": given.memory} if given.memory else {}) | ({GPU: given.gpus} if given.gpus else {})
    folders = {"token": TOKEN_FOLDER, "runs": RUNS_FOLDER, "memory": "/dev/shm"}
    container: dict[str, Any] = {
        "name": "cordee",
        "image": given.image,
        "command": given.command,
        "workingDir": JOB_FOLDER,
        "ports": [{"name": "cordee", "containerPort": PORT}],
        "resources": {"requests": wanted} | ({"limits": limits} if limits else {}),
        "volumeMounts": [
            {"name": name, "mountPath": path} | ({"readOnly": True} if name == "token" else {})
            for name, path in folders.items()
        ],
    }
    pod: dict[str, Any] = {
        "subdomain": given.name,
        "restartPolicy": "Never",
        "terminationGracePeriodSeconds": given.grace,
        "automountServiceAccountToken": False,
        "containers": [container],
        "volumes": [
            {"name": "token", "secret": {"secretName": given.name, "defaultMode": 0o400}},
            {"name": "runs", "persistentVolumeClaim": {"claimName": given.name}},
            {"name": "memory", "emptyDir": {"medium": "Memory"}},  # what workers of a pod share is larger than 64 MiB
        ],
    }
    if given.pool:
        pod["nodeSelector"] = dict(given.pool)
    tolerated = [*given.tolerations, *([GPU] if given.gpus and GPU not in given.tolerations else [])]
    if tolerated:
        pod["tolerations"] = [{"key": key, "operator": "Exists", "effect": "NoSchedule"} for key in tolerated]
    return pod


def _plain(document: Any) -> Any:
    """Without what is shared between parts, for which YAML would write anchors."""
    if isinstance(document, Mapping):
        return {name: _plain(value) for name, value in document.items()}
    return [_plain(value) for value in document] if isinstance(document, list | tuple) else document
