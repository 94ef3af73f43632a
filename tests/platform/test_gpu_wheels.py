"""
Tests that scripts/gpu_wheels.sh lists all wheels for a machine with a GPU and without a network.
"""

import re
from importlib.metadata import distribution, packages_distributions

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from paths import ROOT

NOT_THERE = {"torch", "ddp-lessons", "typer", "jupyterlab", "debugpy", "jedi", "parso"}
NOT_THERE |= {"tensorboard-data-server", "jupyterhub", "accelerate", "lightning-fabric"}
"""
Packages that need no wheel. torch is on the machine, and our own wheel is built. The proof does not
use the command line, JupyterLab and the hub. ipykernel, IPython and TensorBoard work without
debugpy, jedi, parso and tensorboard-data-server. Without the frameworks lesson 16 shows stored
outputs.
"""


def needed_wheels():
    """
    Return the names of the packages that scripts/gpu_wheels.sh packs.
    """
    script = (ROOT / "scripts/gpu_wheels.sh").read_text()
    lists = re.findall(r'^(?:needed|plain)="([^"]*)"', script, re.MULTILINE)
    assert len(lists) == 2
    return set(" ".join(lists).split())


def closure(names, without=frozenset()):
    """
    Return packages with all their requirements on Linux, as the packages installed here declare
    them.

    Args:
        names: Names of packages.
        without: Names of packages to leave out; their requirements are not followed.
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
    Return the packages that the course and its benchmarks import, anywhere in their files.
    """
    known, found = packages_distributions(), set()
    for path in [*(ROOT / "benchmarks").glob("*.py"), *(ROOT / "ddp_lessons").rglob("*.py")]:
        for name in re.findall(r"^\s*(?:from|import) (\w+)", path.read_text(), re.MULTILINE):
            found.update(canonicalize_name(package) for package in known.get(name, ()))
    return found


def test_wheels_hold_all_that_the_proof_imports():
    """
    The list has every package that the proof imports: a missing one would appear on the machine
    with the GPU, where there is no network.
    """
    imported = imported_packages()
    assert {"torch", "ipyparallel", "jupyter-client"} <= imported
    # The digits are read from scikit-learn's file, and nothing of it is imported.
    roots = (imported - NOT_THERE) | {"nbval", "pytest", "pytest-timeout", "scikit-learn"}
    roots |= {"torchmetrics"}  # only a lesson imports it
    assert closure(roots, NOT_THERE | closure(["torch"])) <= needed_wheels()


def test_wheels_are_pinned():
    """
    Every package of the list is pinned in requirements.lock: the script would silently leave out
    the others.
    """
    lock = (ROOT / "requirements.lock").read_text()
    assert [n for n in needed_wheels() if not re.search(rf"^{n}==", lock, re.MULTILINE)] == []
