"""
The wheels for a machine with a GPU and no network: the list in scripts/gpu_wheels.sh is complete.
"""

import re
from importlib.metadata import distribution, packages_distributions

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from paths import ROOT

NOT_THERE = {"torch", "ddp-lessons", "typer", "jupyterlab", "debugpy", "jedi", "parso"}
NOT_THERE |= {"tensorboard-data-server", "jupyterhub", "accelerate", "lightning-fabric"}
"""
torch is there, our wheel is built; command line, JupyterLab and hub are of no use to the proof;
ipykernel, IPython and TensorBoard do without the others. Without frameworks lesson 16 shows what
was stored.
"""


def needed_wheels():
    """
    Return the packages that scripts/gpu_wheels.sh packs.
    """
    script = (ROOT / "scripts/gpu_wheels.sh").read_text()
    lists = re.findall(r'^(?:needed|plain)="([^"]*)"', script, re.MULTILINE)
    assert len(lists) == 2
    return set(" ".join(lists).split())


def closure(names, without=frozenset()):
    """
    Return packages and all that they require on Linux, by what is installed here.
    """
    found, waiting = set(), list(names)
    where = {"extra": "", "sys_platform": "linux", "python_version": "3.12"}
    while waiting:
        name = canonicalize_name(waiting.pop())
        if name in found or name in without:
            continue
        found.add(name)
        for line in distribution(name).requires or ():
            needed = Requirement(line)
            if needed.marker is None or needed.marker.evaluate(where):
                waiting.append(needed.name)
    return found


def imported_packages():
    """
    Return the packages that the course and its benchmarks import, wherever they do.
    """
    known, found = packages_distributions(), set()
    for path in [*(ROOT / "benchmarks").glob("*.py"), *(ROOT / "ddp_lessons").rglob("*.py")]:
        for name in re.findall(r"^\s*(?:from|import) (\w+)", path.read_text(), re.MULTILINE):
            found.update(canonicalize_name(package) for package in known.get(name, ()))
    return found


def test_wheels_hold_all_that_the_proof_imports():
    """
    A package that is missing shows on the machine with the GPU, where there is no network.
    """
    imported = imported_packages()
    assert {"torch", "ipyparallel", "jupyter-client"} <= imported
    # The digits are read from scikit-learn's file, and nothing of it is imported.
    roots = (imported - NOT_THERE) | {"nbval", "pytest", "pytest-timeout", "scikit-learn"}
    roots |= {"torchmetrics"}  # which only a lesson imports
    assert closure(roots, NOT_THERE | closure(["torch"])) <= needed_wheels()


def test_wheels_are_pinned():
    """
    A name without a pin would be left out in silence.
    """
    lock = (ROOT / "requirements.lock").read_text()
    assert [n for n in needed_wheels() if not re.search(rf"^{n}==", lock, re.MULTILINE)] == []
