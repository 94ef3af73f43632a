"""
Tests of manifests for Kubernetes: they fit the published schemas, and their commands work here.

The tests use no cluster. The schemas in tests/platform/schemas name their sources.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import jsonschema
import nbformat
import pytest
import yaml
from nbformat import v4
from typer.testing import CliRunner

from ddp_lessons.course.cli import app
from ddp_lessons.course.notebooks.kubernetes import Shape, manifests
from ddp_lessons.course.notebooks.script import read_script
from ddp_lessons.errors import BadInput
from ddp_lessons.ranks.supervisor.controller_options import hold_ports

SCHEMAS = Path(__file__).parent / "schemas"
IMAGE = "registry.example.org/course:1"
SUM = """\
import os

import torch
import torch.distributed as dist

# what a shell or Kubernetes would change: "$HOME" '$(NODE_RANK)' $$ %s \\n
dist.init_process_group("gloo")
ones = torch.ones(1)
dist.all_reduce(ones)
with open(os.environ["SAID"] + os.environ["RANK"], "w") as file:
    file.write(f"{int(ones)} of {os.environ['WORLD_SIZE']}")
dist.destroy_process_group()
"""
SHAPES = [Shape(IMAGE), Shape(IMAGE, nodes=1, ranks_per_node=4), Shape(IMAGE, nodes=16, gpus=8)]


def objects(shape=SHAPES[0], script="train.py", text=SUM):
    """
    Return (file, object) for every object of both manifests.
    """
    return [
        (file, part)
        for file, manifest in manifests(script, text, shape).items()
        for part in yaml.safe_load_all(manifest)
    ]


def part(kind, *arguments, **options):
    """
    Return the first object of a kind. Only of ConfigMap there are two, which are equal.
    """
    return next(found for _, found in objects(*arguments, **options) if found["kind"] == kind)


def schema_of(found):
    """
    Return the schema of an object.
    """
    text = (SCHEMAS / f"{found['kind'].lower()}.json").read_text(encoding="utf-8")
    return json.loads(text)


def assert_valid(found):
    """
    Assert that an object fits its schema, which allows no unknown field.
    """
    schema = schema_of(found)
    jsonschema.Draft202012Validator.check_schema(schema)
    jsonschema.Draft202012Validator(schema).validate(found)


@pytest.mark.parametrize("shape", SHAPES, ids=["default", "one-node", "gpus"])
def test_manifests_are_what_the_schemas_ask_for(shape):
    """
    All objects of a manifest fit their schemas: a cluster would drop or refuse a misnamed field,
    hours later.
    """
    found = objects(shape)
    kinds = [(file, one["kind"]) for file, one in found]
    assert kinds == [
        ("train.trainjob.yaml", "ConfigMap"),
        ("train.trainjob.yaml", "TrainJob"),
        ("train.job.yaml", "ConfigMap"),
        ("train.job.yaml", "Service"),
        ("train.job.yaml", "Job"),
    ]
    for _, one in found:
        assert_valid(one)


MISTAKES = [
    ("TrainJob", ("spec", "trainer", "numNodes"), "2"),
    ("TrainJob", ("spec", "trainer", "nodes"), 2),
    ("TrainJob", ("spec", "runtimeRef"), {"kind": "ClusterTrainingRuntime"}),
    ("TrainJob", ("apiVersion",), "kubeflow.org/v1"),
    ("Job", ("spec", "completions"), "2"),
    ("Job", ("spec", "template", "spec", "subDomain"), "train"),
    ("Job", ("spec", "template", "spec", "containers"), [{"image": IMAGE}]),
    ("Job", ("apiVersion",), "batch/v1beta1"),
    ("Service", ("spec", "publishNotReady"), True),
    ("ConfigMap", ("data", "train.py"), 3),
]


@pytest.mark.parametrize(("kind", "where", "value"), MISTAKES)
def test_schemas_find_what_is_wrong(kind, where, value):
    """
    The schemas refuse wrong names, types and versions, and missing fields, so the test above can
    fail.
    """
    found = part(kind)
    *folders, name = where
    inside = found
    for folder in folders:
        inside = inside[folder]
    inside[name] = value
    with pytest.raises(jsonschema.ValidationError):
        assert_valid(found)


@pytest.mark.parametrize("path", sorted(SCHEMAS.glob("*.json")), ids=lambda path: path.stem)
def test_schemas_say_where_they_come_from(path):
    """
    Each schema names its source and its licence, because it is the work of others.
    """
    comment = json.loads(path.read_text(encoding="utf-8"))["$comment"]
    assert "Apache-2.0" in comment
    assert "github.com/" in comment
    assert "trimmed" in comment


def test_names_of_a_job_fit_together():
    """
    The names in the objects of a job refer to each other. No cluster checks them: pods would wait
    for ever for a name that does not exist.
    """
    job, service, holder = part("Job"), part("Service"), part("ConfigMap")
    inside = job["spec"]["template"]
    labels, (container,) = inside["metadata"]["labels"], inside["spec"]["containers"]
    assert service["spec"]["selector"].items() <= labels.items()
    assert inside["spec"]["subdomain"] == service["metadata"]["name"]
    host = f"{job['metadata']['name']}-0.{service['metadata']['name']}"
    assert f"--master-addr={host}" in container["command"]
    mounts = {mount["name"]: mount["mountPath"] for mount in container["volumeMounts"]}
    assert mounts.keys() == {volume["name"] for volume in inside["spec"]["volumes"]}
    assert container["command"][-1] == f"{mounts['script']}/train.py"
    assert inside["spec"]["volumes"][0]["configMap"]["name"] == holder["metadata"]["name"]
    assert job["spec"]["completions"] == job["spec"]["parallelism"] == 2
    told = part("TrainJob")["spec"]["trainer"]["env"][0]["valueFrom"]["configMapKeyRef"]
    assert (told["name"], told["key"]) == (holder["metadata"]["name"], "train.py")
    assert holder["data"] == {"train.py": SUM}


def test_gpus_are_asked_for_where_there_are_any():
    """
    With GPUs each node requests them and runs one rank for each; without, no object mentions GPUs.
    """
    shape = Shape(IMAGE, gpus=4)
    trainer = part("TrainJob", shape)["spec"]["trainer"]
    assert trainer["numProcPerNode"] == 4
    assert trainer["resourcesPerNode"] == {"limits": {"nvidia.com/gpu": 4}}
    (container,) = part("Job", shape)["spec"]["template"]["spec"]["containers"]
    assert container["resources"] == {"limits": {"nvidia.com/gpu": 4}}
    assert "--nproc-per-node=4" in container["command"]
    for _, one in objects():
        assert "nvidia" not in str(one)


def run_as_nodes(command_of, environment):
    """
    Run a command as two nodes with one rank each, and assert that both succeed.

    Args:
        command_of: Function that returns a node's command, by its number.
        environment: Function that returns a node's additional variables, by its number.
    """
    tools = os.path.dirname(sys.executable)  # the folder with torchrun
    own = {**os.environ, "GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"}
    own["PATH"] = os.pathsep.join([tools, own["PATH"]])
    running = [
        subprocess.Popen(
            command_of(node), env={**own, **environment(node)}, stderr=subprocess.PIPE, text=True
        )
        for node in range(2)
    ]
    try:
        for process in running:
            _, said = process.communicate(timeout=120)
            assert process.returncode == 0, said
    finally:
        for process in running:
            process.kill()
            process.communicate()


@pytest.fixture
def port():
    """
    Yield a port that no other process gets meanwhile. In a cluster each pod has its own address.
    """
    (held,) = hold_ports(1)
    with held:
        yield str(held.getsockname()[1])


@pytest.mark.skipif(sys.platform == "darwin", reason="its loopback has another name")
def test_the_command_of_a_job_runs_the_script(tmp_path, port):
    """
    The command of the Job runs the script, with the pod's number, the script's path and the address
    that Kubernetes would insert.
    """
    (tmp_path / "train.py").write_text(part("ConfigMap")["data"]["train.py"])
    (container,) = part("Job")["spec"]["template"]["spec"]["containers"]
    (variable,) = container["env"]

    def command(node):
        told = [word.replace(f"$({variable['name']})", str(node)) for word in container["command"]]
        put_in = {
            "--master-addr=train-0.train": "--master-addr=127.0.0.1",
            "--master-port=29500": f"--master-port={port}",
            "/script/train.py": str(tmp_path / "train.py"),
        }
        assert put_in.keys() <= set(told)
        return [put_in.get(word, word) for word in told]

    run_as_nodes(command, lambda node: {"SAID": str(tmp_path / "said")})
    assert [(tmp_path / f"said{rank}").read_text() for rank in range(2)] == ["2 of 2"] * 2


@pytest.mark.skipif(sys.platform == "darwin", reason="its loopback has another name")
def test_the_command_of_a_train_job_runs_the_script(tmp_path, port):
    """
    The command of the TrainJob runs the script. torchrun gets its other settings from variables of
    Kubeflow's, whose names begin with PET.
    """
    trainer = part("TrainJob")["spec"]["trainer"]
    shell, option, line = trainer["command"]

    def command(node):
        return [shell, option, line.replace("/tmp/", f"{tmp_path}/{node}-")]

    def told(node):
        return {
            "SCRIPT": part("ConfigMap")["data"]["train.py"],
            "SAID": str(tmp_path / "said"),
            "PET_NNODES": str(trainer["numNodes"]),
            "PET_NPROC_PER_NODE": str(trainer["numProcPerNode"]),
            "PET_NODE_RANK": str(node),
            "PET_MASTER_ADDR": "127.0.0.1",
            "PET_MASTER_PORT": port,
        }

    run_as_nodes(command, told)
    assert [(tmp_path / f"said{rank}").read_text() for rank in range(2)] == ["2 of 2"] * 2
    assert (tmp_path / "0-train.py").read_text() == SUM


@pytest.mark.parametrize(
    ("script", "name"),
    [
        ("train.py", "train"),
        ("09_launch.py", "ddp-09-launch"),
        ("My.Digits_v2.py", "my-digits-v2"),
        ("train", "train"),
    ],
)
def test_names_are_names_of_kubernetes(script, name):
    """
    The names of objects are valid in Kubernetes: lower-case letters, digits and hyphens, beginning
    with a letter.
    """
    assert {one["metadata"]["name"] for _, one in objects(script=script)} == {name}


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"image": ""}, "No image: expected the name of a container image"),
        ({"image": "two words"}, "(got 'two words'). Add --image"),
        ({"nodes": 0}, "--nodes cannot be: a whole number from 1 (got 0)"),
        ({"ranks_per_node": 0}, "--ranks-per-node cannot be: a whole number from 1 (got 0)"),
        ({"gpus": -1}, "--gpus cannot be: a whole number from 0 (got -1)"),
        ({"ranks_per_node": 2, "gpus": 4}, "(got --ranks-per-node 2 and --gpus 4)"),
    ],
)
def test_what_cannot_be_is_refused(options, said):
    """
    An impossible shape is refused at once, with the option to change, not later by a cluster.
    """
    with pytest.raises(BadInput) as caught:
        Shape(**{"image": IMAGE, **options})
    assert said in str(caught.value)


@pytest.mark.parametrize(
    ("script", "text", "said"),
    [
        ("größe.py", SUM, "The script's name is none for Kubernetes"),
        ("_.py", SUM, "The script's name is none for Kubernetes"),
        (f"{'a' * 51}.py", SUM, "at most 50 letters (got 51)"),
        ("train.py", "#" * 128_001, "at most 128000 bytes (got 128001)"),
    ],
)
def test_scripts_that_do_not_fit_are_refused(script, text, said):
    """
    A script is refused if its name cannot become a valid name of an object, or if its text is too
    long for a ConfigMap.
    """
    with pytest.raises(BadInput) as caught:
        manifests(script, text, SHAPES[0])
    assert said in str(caught.value)


@pytest.fixture
def notebook(tmp_path):
    """
    Return the path of a notebook with one cell that is tagged for a script.
    """
    cell = v4.new_code_cell("%%px\nprint('$(HOME)  ')\n", metadata={"tags": ["script"]})
    path = tmp_path / "my.ipynb"
    nbformat.write(v4.new_notebook(cells=[cell]), path)
    return path


def ask(notebook, *options):
    """
    Run the command `script` on a notebook, and return its result.
    """
    return CliRunner().invoke(app, ["script", str(notebook), *map(str, options)])


def test_manifests_are_written_beside_the_script(notebook, tmp_path):
    """
    The manifests are written next to the script, contain it, and say that they are untried on a
    cluster.
    """
    out = tmp_path / "train.py"
    done = ask(notebook, "-o", out, "--kubernetes", "--image", IMAGE, "--nodes", 3)
    assert done.exit_code == 0, done.output
    assert done.output.splitlines()[1:] == [
        "train.trainjob.yaml: untried on a cluster, see docs/kubernetes.md",
        "train.job.yaml: untried on a cluster, see docs/kubernetes.md",
    ]
    assert out.read_text() == read_script(str(notebook))
    for kind in ("trainjob", "job"):
        text = (tmp_path / f"train.{kind}.yaml").read_text()
        assert "# Untried on a cluster" in text
        assert "3 nodes, 1 rank on each" in text
        holder, *_ = yaml.safe_load_all(text)
        assert holder["data"]["train.py"] == out.read_text()


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--kubernetes", "--image", IMAGE], "expected --output, beside which they are written"),
        (["-o", "train.py", "--kubernetes"], "No image: expected the name"),
        (
            ["-o", "train.py", "--gpus", 2, "--nodes", 2],
            "expected --kubernetes beside --nodes, --gpus",
        ),
        (["-o", "größe.py", "--kubernetes", "--image", IMAGE], "Choose another --output"),
    ],
)
def test_options_that_do_not_fit_are_refused_and_nothing_is_written(
    notebook, tmp_path, monkeypatch, options, said
):
    """
    Options that do not fit together are refused in one line, and not even the script is written.
    """
    monkeypatch.chdir(tmp_path)
    done = ask(notebook, *options)
    assert done.exit_code == 1
    assert done.stderr.startswith("ddp-lessons script: ")
    assert said in done.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["my.ipynb"]
