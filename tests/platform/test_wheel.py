"""
The course as a wheel: installed where there is no clone, it is the same course.
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
    The Python of a new environment in which the wheel is installed.

    What the course needs is lent from this environment: torch alone would take a minute to install.
    """
    folder = tmp_path_factory.mktemp("wheel")
    # From a copy: a build leaves files behind, which the next one would pack again.
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
    Somebody without git, in an empty folder.
    """
    said = run(python.parent / "ddp-lessons", "copy", cwd=tmp_path)
    mine = tmp_path / "my-course"
    assert f"your course is in {mine}" in said
    workspace.update(tmp_path / "clone", ROOT)
    names = sorted(path.relative_to(mine) for path in mine.rglob("*") if path.is_file())
    assert len(names) >= 20
    for name in names:
        assert (mine / name).read_bytes() == (tmp_path / "clone" / name).read_bytes(), name
    sources = (mine / "notebooks" / "sources").resolve()
    assert sources.is_relative_to(python.parents[1])


def test_wheel_has_every_command(python, tmp_path):
    """
    The text of the exercises is needed too: a blank and a solution are made from it.
    """
    command = python.parent / "ddp-lessons"
    run(command, "copy", "mine", cwd=tmp_path)
    assert "is blank again" in run(command, "reset", "02", "--folder", "mine", cwd=tmp_path)
    assert "def all_reduce" in run(command, "solution", "--yes", "02.1", cwd=tmp_path)


def test_post_build_installs_the_package_where_no_volume_hides_it(tmp_path):
    """
    A hub on Kubernetes mounts the learner's volume over the folder that the image was built from.
    """
    clone, env = tmp_path / "clone", tmp_path / "env"
    shutil.copytree(ROOT, clone, ignore=shutil.ignore_patterns(*NOT_PACKED))
    venv.create(env, with_pip=False)
    (site,) = (env / "lib").glob("python*/site-packages")
    # The image's Python has a pip of its own. This one is lent ours, and what builds the package.
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
        "PIP_NO_BUILD_ISOLATION": "false",  # which is how pip spells --no-build-isolation
    }
    done = subprocess.run(
        ["./postBuild"], cwd=clone, env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr
    shutil.rmtree(clone)
    (site / "lent.pth").write_text(sysconfig.get_path("purelib"))
    said = run(env / "bin" / "ddp-lessons", "copy", cwd=tmp_path)
    assert f"your course is in {tmp_path / 'my-course'}" in said
