"""`cordee deploy`: write what another system needs to start a run."""

from __future__ import annotations

import os
import secrets
import shutil
from pathlib import Path
from typing import Annotated

import typer

from cordee.cli import options
from cordee.core import damage
from cordee.core.errors import SecurityError, UsageError
from cordee.core.text import plain

app = typer.Typer(name="deploy", help="Write what another system needs to start a run.", no_args_is_help=True)


@app.callback()
def about() -> None:
    """Write what another system needs to start a run."""


@app.command()
def kubernetes(
    job: options.JobFile,
    image: Annotated[str, typer.Option(help="The image, such as registry.example/digits:1.", show_default=False)],
    out: Annotated[Path, typer.Option(metavar="<folder>", help="Where to write it.", show_default=False)],
    workers: Annotated[int, typer.Option(help="Processes to train with, over all pods.")] = 1,
    pods: Annotated[int | None, typer.Option(help="How many pods. Default: one per worker.")] = None,
    name: Annotated[
        str | None, typer.Option(help="Of the job and all that belongs to it. Default: the file's.")
    ] = None,
    memory: Annotated[str, typer.Option(help="Memory of each pod, such as 8Gi.")] = "",
    gpus: Annotated[int, typer.Option(help="GPUs of each pod.")] = 0,
    pool: Annotated[
        list[str] | None, typer.Option(metavar="<label=value>", help="Only on nodes with this label.")
    ] = None,
    tolerate: Annotated[
        list[str] | None, typer.Option(metavar="<taint>", help="Also on nodes with this taint.")
    ] = None,
    storage: Annotated[str, typer.Option(help="Size of the volume for the run's folder.")] = "10Gi",
    storage_class: Annotated[str, typer.Option(help="Storage class, of which all pods can write one volume.")] = "",
    grace: Annotated[int, typer.Option(help="Seconds that a pod has to end: a step and a checkpoint.")] = 120,
    plan: options.PlanText = "auto",
    set_: options.Settings = None,
    trusted_network: options.Trusted = False,
) -> None:
    """Write an image's recipe and the manifests of a run on Kubernetes."""
    from cordee.core.plan import Plan
    from cordee.runtime.engines import manifests

    options.python_file(job)
    Plan.parse(plan)
    if not trusted_network:
        raise SecurityError(
            "between pods our own connections are encrypted, but gloo's carry gradients in the clear. If the network "
            "of the pods is trusted, say so: --trusted-network"
        )
    words = [] if plan == "auto" else ["--plan", plan]
    words += [word for key, value in options.parse_settings(set_).items() for word in ("--set", f"{key}={value}")]
    given = manifests.Deployment(
        name or job.stem.lower().replace("_", "-"),
        image,
        job.name,
        workers,
        tuple(words),
        workers if pods is None else pods,
        memory,
        gpus,
        options.parse_settings(pool, "--pool"),
        tuple(tolerate or ()),
        storage,
        storage_class,
        grace,
    )
    there = [one for one in (manifests.RECIPE, manifests.MANIFEST, manifests.SECRET) if (out / one).exists()]
    if there:
        raise UsageError(f"{out} holds {', '.join(there)} already: remove it, or choose another folder with --out")
    with damage.writing(out):
        out.mkdir(parents=True, exist_ok=True)
        if not (out / job.name).exists():
            shutil.copyfile(job, out / job.name)
        (out / manifests.RECIPE).write_text(manifests.recipe(given), encoding="utf-8")
        (out / manifests.MANIFEST).write_text(manifests.written(manifests.manifests(given)), encoding="utf-8")
        text = manifests.written([manifests.secret(given, secrets.token_hex(32))])
        handle = os.open(out / manifests.SECRET, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(handle, "w") as file:
            file.write(text)
    print(plain(f"docker build -t {image} {out} && docker push {image}"))
    print(plain(f"kubectl apply -f {out / manifests.SECRET} -f {out / manifests.MANIFEST}"))
