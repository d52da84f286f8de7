"""The command that writes what starts a deployment: manifests."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

from mosaic_tasks.cli.exits import ExitCode
from mosaic_tasks.cli.options import JsonOption
from mosaic_tasks.cli.output import print_json

_FILES = {
    "procfile": "Procfile",
    "compose": "docker/compose.yaml",
    "helm": "docker/helm/mosaic-tasks/values.yaml",
}


class Kind(StrEnum):
    """What starts the workers."""

    PROCFILE = "procfile"
    COMPOSE = "compose"
    HELM = "helm"


def manifests(
    kind: Annotated[
        Kind, typer.Argument(help="A Procfile, a compose file, or values of the Helm chart in docker/helm.")
    ],
    out: Annotated[
        Path | None, typer.Option("--out", "-o", metavar="FILE", help="Write it to this file, not to stdout.")
    ] = None,
    check: Annotated[
        Path | None,
        typer.Option("--check", metavar="FILE", help="Write nothing: exit code 1 when this file is another."),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Write what starts the workers of the topology: each of its groups becomes lines, a service, or a Deployment.

    The topology is the file that MOSAIC_TOPOLOGY names, the model pool that of MOSAIC_MODELS. In a compose file paths
    are relative to its own folder, which is taken to be the folder docker of the sources.

    \b
    Examples:
      mosaic manifests procfile --out Procfile
      mosaic manifests compose --out docker/compose.yaml
      mosaic manifests helm --check docker/helm/mosaic-tasks/values.yaml
    """
    if out is not None and check is not None:
        raise typer.BadParameter("give it without --out", param_hint="--check")
    text = _text(kind, folder=(out or check or Path(_FILES[kind])).absolute().parent)
    if out is not None:
        out.write_text(text, "utf-8")
        _tell({"kind": kind, "file": str(out)}, f"written: {out}", as_json=as_json)
    elif check is not None:
        _compare(text, check, kind, as_json=as_json)
    else:
        _tell({"kind": kind, "text": text}, text.rstrip("\n"), as_json=as_json)


def _tell(document: dict[str, Any], text: str, *, as_json: bool, is_wrong: bool = False) -> None:
    if as_json:
        print_json(document)
    else:
        typer.echo(text, err=is_wrong)


def _compare(text: str, file: Path, kind: Kind, *, as_json: bool) -> None:
    """Ends with exit code 1, and says what mends it, when the file says something else."""
    is_same = file.exists() and file.read_text("utf-8") == text
    mend = f"mosaic manifests {kind} --out {file}"
    told = f"as the topology says: {file}"
    if not is_same:
        told = f"mosaic: {file} is not what the topology says; mend it with: {mend}"
    document = {"kind": kind, "file": str(file), "is_same": is_same, "mend": "" if is_same else mend}
    _tell(document, told, as_json=as_json, is_wrong=not is_same)
    if not is_same:
        raise typer.Exit(ExitCode.FAILED)


def _text(kind: Kind, *, folder: Path) -> str:
    from importlib.metadata import version

    from mosaic_queues.topology import topology, topology_path
    from mosaic_routing.manifests.compose import Files, compose
    from mosaic_routing.manifests.helm import helm_values
    from mosaic_routing.manifests.procfile import procfile
    from mosaic_routing.manifests.services import relative
    from mosaic_routing.pool import pool, pool_path

    workers, models = topology(), pool()
    if kind is Kind.PROCFILE:
        return procfile(workers, models)
    if kind is Kind.COMPOSE:
        files = Files(relative(topology_path(), to=folder), relative(pool_path(), to=folder))
        return compose(workers, models, files=files)
    return helm_values(workers, models, version=version("mosaic-tasks"))
