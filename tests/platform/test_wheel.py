"""
Tests of the wheel: installed without a clone, it has the same course.
"""

import os
import shutil
import subprocess
import sys
import sysconfig
import venv
from pathlib import Path

import pytest
from paths import ROOT

from ddp_lessons.course.learner import workspace
from ddp_lessons.progress.renewal import NOTES, read_notes

NOT_PACKED = (
    ".*",
    "build",
    "dist",
    "*.egg-info",
    "__pycache__",
    "my-course",
    "tests",
    "benchmarks",
)


def run(*command, cwd):
    """
    Run a command outside the clone, and return what it printed.
    """
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(
        list(map(str, command)), cwd=cwd, env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def python(tmp_path_factory):
    """
    Return the Python of a new environment in which the wheel is installed.

    The environment uses the packages of this one: an installation of torch alone would take a
    minute.
    """
    folder = tmp_path_factory.mktemp("wheel")
    # Build from a copy: a build leaves files, which the next build would pack.
    shutil.copytree(ROOT, folder / "clone", ignore=shutil.ignore_patterns(*NOT_PACKED))
    wheel = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation"]
    run(*wheel, "--wheel-dir", folder, folder / "clone", cwd=folder)
    venv.create(folder / "env", with_pip=False)
    python = folder / "env" / "bin" / "python"
    (site,) = (folder / "env" / "lib").glob("python*/site-packages")
    (site / "lent.pth").write_text(sysconfig.get_path("purelib"))
    pip = [sys.executable, "-m", "pip", "--python", python, "install", "--quiet", "--no-deps"]
    (built,) = folder.glob("*.whl")
    run(*pip, "--force-reinstall", built, cwd=folder)
    return python


def test_wheel_gives_the_same_course_as_the_clone(python, tmp_path):
    """
    `copy` gives a user without git the same files as a clone.
    """
    said = run(python.parent / "ddp-lessons", "copy", cwd=tmp_path)
    mine = tmp_path / "my-course"
    assert f"your course is in {mine}" in said
    workspace.update(tmp_path / "clone", ROOT)
    names = sorted(path.relative_to(mine) for path in mine.rglob("*") if path.is_file())
    assert len(names) >= 20
    # The notes name the folder of published texts, which is beside the course.
    noted, noted_of_clone = (read_notes(folder) for folder in (mine, tmp_path / "clone"))
    assert noted | {"published": ""} == noted_of_clone | {"published": ""}
    for name in set(names) - {Path(NOTES)}:
        assert (mine / name).read_bytes() == (tmp_path / "clone" / name).read_bytes(), name
    sources = (mine / "notebooks" / "sources").resolve()
    assert sources.is_relative_to(python.parents[1])


def test_wheel_has_every_command(python, tmp_path):
    """
    Every command works from the wheel: `reset` and `solution` also need the exercises' text twins.
    """
    command = python.parent / "ddp-lessons"
    run(command, "copy", "mine", cwd=tmp_path)
    assert "is blank again" in run(command, "reset", "02", "--folder", "mine", cwd=tmp_path)
    assert "def all_reduce" in run(command, "solution", "--yes", "02.1", cwd=tmp_path)


def test_post_build_installs_the_package_where_no_volume_hides_it(tmp_path):
    """
    postBuild installs the package outside of the clone's folder: a hub on Kubernetes mounts the
    learner's volume over it.
    """
    clone, env = tmp_path / "clone", tmp_path / "env"
    shutil.copytree(ROOT, clone, ignore=shutil.ignore_patterns(*NOT_PACKED))
    venv.create(env, with_pip=False)
    (site,) = (env / "lib").glob("python*/site-packages")
    # The image's Python has its own pip. This environment uses ours, and our setuptools.
    ours = Path(sysconfig.get_path("purelib"))
    for path in (ours / "_distutils_hack", *ours.glob("setuptools*")):
        (site / path.name).symlink_to(path)
    shim = tmp_path / "bin" / "python"
    shim.parent.mkdir()
    shim.write_text(f'#!/bin/sh\nshift 2\nexec {sys.executable} -m pip --python {env} "$@"\n')
    shim.chmod(0o755)
    environment = {
        **{name: value for name, value in os.environ.items() if name != "PYTHONPATH"},
        "PATH": f"{shim.parent}:{os.environ['PATH']}",
        "PIP_NO_BUILD_ISOLATION": "false",  # pip's name for --no-build-isolation
    }
    done = subprocess.run(
        ["./postBuild"], cwd=clone, env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr
    shutil.rmtree(clone)
    (site / "lent.pth").write_text(sysconfig.get_path("purelib"))
    said = run(env / "bin" / "ddp-lessons", "copy", cwd=tmp_path)
    assert f"your course is in {tmp_path / 'my-course'}" in said
