"""
Manifests for Kubernetes that run a script with torchrun on several nodes of a cluster.

There are two files: a TrainJob for clusters with Kubeflow Trainer 2, and a Job with a Service for
clusters with plain Kubernetes. They have not been tried on a cluster. Tests validate them against
the schemas, and run their commands on one machine.
"""

import re
from dataclasses import dataclass
from typing import Any

import yaml

from ddp_lessons.errors import BadInput

_PORT = 29500
_FOLDER = "/script"
_MOST_LETTERS = 50
"""
Letters of a name, at most. Kubernetes and Kubeflow append a pod's number to it, and a host name has
63 letters at most.
"""
_MOST_BYTES = 128_000
"""
Bytes of a script, at most: one environment variable holds 128 KiB.
"""
_NUMBER_OF_POD = "metadata.annotations['batch.kubernetes.io/job-completion-index']"
_HEAD = """\
# Made by: ddp-lessons script. It runs {script} on {nodes}, {ranks} on each.
# Untried on a cluster: its fields were checked against the schema of {what}, and no more.
#
#     kubectl apply -f {file}
#
"""


@dataclass(frozen=True)
class Shape:
    """
    The image, nodes and GPUs that a job uses in a cluster.

    Args:
        image: A container image with torch, and with ddp-lessons if the script imports it.
        nodes: Number of nodes.
        ranks_per_node: Ranks on each node. Default: its number of GPUs, or 1 without GPUs.
        gpus: GPUs on each node, one for each rank; 0 for ranks on the CPU.

    Raises:
        BadInput: A number is out of range, or the image's name is missing or invalid.
    """

    image: str
    nodes: int = 2
    ranks_per_node: int | None = None
    gpus: int = 0

    def __post_init__(self):
        if self.ranks_per_node is None:
            object.__setattr__(self, "ranks_per_node", self.gpus or 1)
        for name, least in (("nodes", 1), ("gpus", 0), ("ranks_per_node", 1)):
            value = getattr(self, name)
            if value < least:
                option = name.replace("_", "-")
                raise BadInput(
                    f"--{option} cannot be: a whole number from {least} (got {value}). Correct it."
                )
        if self.gpus not in (0, self.ranks_per_node):
            raise BadInput(
                f"Ranks and GPUs do not fit: a GPU for each rank of a node, or none (got "
                f"--ranks-per-node {self.ranks_per_node} and --gpus {self.gpus}). NCCL takes no "
                "two ranks on one GPU: leave --ranks-per-node out."
            )
        if not re.fullmatch(r"[a-z0-9][\w.:/@-]*", self.image or ""):
            raise BadInput(
                "No image: expected the name of a container image that has torch, and ddp-lessons "
                f"if the script imports it (got {self.image!r}). Add --image, such as "
                "--image registry.example.org/course:1."
            )


def manifests(script, text, shape):
    """
    Return the manifests that run a script.

    Args:
        script: The script's file name, such as "train.py".
        text: The script's text.
        shape: The Shape.

    Returns:
        dict: The text of each file by its name: `train.trainjob.yaml` and `train.job.yaml`.

    Raises:
        BadInput: Kubernetes does not accept the name, or the script is too long.
    """
    name = _name_of(script)
    num_bytes = len(text.encode())
    if num_bytes > _MOST_BYTES:
        raise BadInput(
            f"{script} is too long for a manifest: at most {_MOST_BYTES} bytes (got {num_bytes}). "
            "Put it into the image, and call it in the manifest of a shorter one."
        )
    stem = script.removesuffix(".py")
    holder = _object("v1", "ConfigMap", name, data={script: text})
    files = {
        f"{stem}.trainjob.yaml": ("Kubeflow Trainer", [holder, _train_job(name, script, shape)]),
        f"{stem}.job.yaml": ("Kubernetes", [holder, _service(name), _job(name, script, shape)]),
    }
    return {
        file: _HEAD.format(
            script=script,
            nodes=_counted(shape.nodes, "node"),
            ranks=_counted(shape.ranks_per_node, "rank"),
            what=what,
            file=file,
        )
        + yaml.dump_all(parts, Dumper=_Dumper, sort_keys=False, width=100)
        for file, (what, parts) in files.items()
    }


def _name_of(script):
    name = re.sub(r"[^a-z0-9]+", "-", script.removesuffix(".py").lower()).strip("-")
    if not name or not re.fullmatch(r"[\w.-]+", script, re.ASCII):
        raise BadInput(
            "The script's name is none for Kubernetes: expected letters of English, digits, "
            f"points, underscores and hyphens (got {script!r}). Choose another --output."
        )
    if not name[0].isalpha():
        name = f"ddp-{name}"
    if len(name) > _MOST_LETTERS:
        raise BadInput(
            f"The script's name is too long for Kubernetes: at most {_MOST_LETTERS} letters (got "
            f"{len(name)}). Choose another --output."
        )
    return name


def _object(api, kind, name, **fields):
    return {"apiVersion": api, "kind": kind, "metadata": {"name": name}, **fields}


def _variable(variable, kind, **where):
    return {"name": variable, "valueFrom": {kind: where}}


def _counted(number, word):
    return f"{number} {word}" if number == 1 else f"{number} {word}s"


def _train_job(name, script, shape):
    """
    Return the TrainJob. Kubeflow's runtime gives torchrun the number of nodes and an address.

    The field that mounts a file has another name in each release of Kubeflow Trainer, so the script
    is passed in an environment variable.
    """
    path = f"/tmp/{script}"
    trainer: dict[str, Any] = {
        "image": shape.image,
        "numNodes": shape.nodes,
        "numProcPerNode": shape.ranks_per_node,
        "command": ["bash", "-c", f'printf %s "$SCRIPT" > {path} && exec torchrun {path}'],
        "env": [_variable("SCRIPT", "configMapKeyRef", name=name, key=script)],
    }
    if shape.gpus:
        trainer["resourcesPerNode"] = _gpus(shape)
    spec = {"runtimeRef": {"name": "torch-distributed"}, "trainer": trainer}
    return _object("trainer.kubeflow.org/v1alpha1", "TrainJob", name, spec=spec)


def _service(name):
    """
    Return a Service that gives each pod of the Job a host name, even before the pod is ready.
    """
    spec = {
        "clusterIP": "None",
        "publishNotReadyAddresses": True,
        "selector": {"app.kubernetes.io/name": name},
    }
    return _object("v1", "Service", name, spec=spec)


def _job(name, script, shape):
    """
    Return a Job with numbered pods. All ranks meet at pod 0, whose host name is NAME-0.NAME.

    A pod that fails ends all pods, because the others would wait for it.
    """
    container: dict[str, Any] = {
        "name": "torchrun",
        "image": shape.image,
        "command": [
            "torchrun",
            f"--nnodes={shape.nodes}",
            f"--nproc-per-node={shape.ranks_per_node}",
            "--node-rank=$(NODE_RANK)",
            f"--master-addr={name}-0.{name}",
            f"--master-port={_PORT}",
            f"{_FOLDER}/{script}",
        ],
        "env": [_variable("NODE_RANK", "fieldRef", fieldPath=_NUMBER_OF_POD)],
        "volumeMounts": [
            {"name": "script", "mountPath": _FOLDER, "readOnly": True},
            {"name": "shm", "mountPath": "/dev/shm"},
        ],
    }
    if shape.gpus:
        container["resources"] = _gpus(shape)
    pod = {
        "restartPolicy": "Never",
        "subdomain": name,
        "containers": [container],
        "volumes": [
            {"name": "script", "configMap": {"name": name}},
            {"name": "shm", "emptyDir": {"medium": "Memory"}},
        ],
    }
    spec = {
        "completionMode": "Indexed",
        "completions": shape.nodes,
        "parallelism": shape.nodes,
        "backoffLimit": 0,
        "template": {"metadata": {"labels": {"app.kubernetes.io/name": name}}, "spec": pod},
    }
    return _object("batch/v1", "Job", name, spec=spec)


def _gpus(shape):
    return {"limits": {"nvidia.com/gpu": shape.gpus}}


class _Dumper(yaml.SafeDumper):
    """
    A YAML dumper that keeps the lines of a text, and repeats a shared part instead of an alias.
    """

    def ignore_aliases(self, data):
        return True


def _represent_text(dumper, text):
    style = "|" if "\n" in text else None
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=style)


_Dumper.add_representer(str, _represent_text)
