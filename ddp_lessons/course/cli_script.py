"""
The command that turns a notebook into a script for a cluster: `ddp-lessons script`.

The command imports its modules only when it runs, so that `--help` answers at once.
"""

from pathlib import Path
from typing import Annotated

import typer

from ddp_lessons.errors import BadInput


def script(
    notebook: Annotated[
        str, typer.Argument(help="A stem such as 09_launch, or a notebook's file.")
    ],
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="Write it there.", show_default="print it")
    ] = None,
    kubernetes: Annotated[
        bool, typer.Option("--kubernetes", help="Write manifests for Kubernetes beside it.")
    ] = False,
    nodes: Annotated[
        int | None, typer.Option(help="Nodes of the cluster.", show_default="2")
    ] = None,
    ranks_per_node: Annotated[
        int | None, typer.Option(help="Ranks on each node.", show_default="its GPUs, or 1")
    ] = None,
    gpus: Annotated[
        int | None, typer.Option(help="GPUs of each node, one a rank.", show_default="0")
    ] = None,
    image: Annotated[
        str | None, typer.Option(help="A container image that has torch and ddp-lessons.")
    ] = None,
):
    """
    Make one script of the cells of a notebook that have the tag "script".

    In JupyterLab, select a cell, open the property inspector (the gears at the right), and add the
    tag under Common Tools. A cell with it begins with %%px.

    Start it with torchrun, or with any other launcher: python -m ddp_lessons.launch SCRIPT. With
    --kubernetes, there are manifests beside it: a TrainJob of Kubeflow's, and a plain Job.
    """
    from ddp_lessons.course.notebooks.script import read_script

    cluster = {"nodes": nodes, "ranks_per_node": ranks_per_node, "gpus": gpus, "image": image}
    given = {name: value for name, value in cluster.items() if value is not None}
    if given and not kubernetes:
        options = ", ".join(f"--{name.replace('_', '-')}" for name in given)
        raise BadInput(
            f"No cluster to run on: expected --kubernetes beside {options} (got a script alone). "
            "Add --kubernetes, or leave the others out."
        )
    if kubernetes and output is None:
        raise BadInput(
            "No place for the manifests: expected --output, beside which they are written (got "
            "none). Add --output train.py."
        )
    text = read_script(notebook)
    files = _manifests(output.name, text, given) if kubernetes and output else {}
    if output is None:
        typer.echo(text, nl=False)
        return
    output.write_text(text, encoding="utf-8")
    typer.echo(f"{output.name}: {len(text.splitlines())} lines")
    for name, manifest in files.items():
        output.with_name(name).write_text(manifest, encoding="utf-8")
        typer.echo(f"{name}: untried on a cluster, see docs/kubernetes.md")


def _manifests(name, text, given):
    from ddp_lessons.course.notebooks.kubernetes import Shape, manifests

    return manifests(name, text, Shape(**{"image": "", **given}))
