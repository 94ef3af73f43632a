"""
The versions that the README promises: how their environments are made, and where they are tested.
"""

import re
import shutil
import subprocess

import pytest
import yaml
from packaging.version import Version
from paths import ROOT

from ddp_lessons import __version__
from ddp_lessons.course.doctor.doctor import (
    NEWEST_PYTHON,
    NEWEST_TRIED_TORCH,
    OLDEST_PYTHON,
    OLDEST_TORCH,
)

WORKFLOWS = ROOT / ".github" / "workflows"
PYTHONS = {f"{OLDEST_PYTHON[0]}.{minor}" for minor in range(OLDEST_PYTHON[1], NEWEST_PYTHON[1] + 1)}
# A fake Python that installs nothing and stores the list of pins.
FAKE_PYTHON = """#!/bin/sh
case "$*" in
"-m venv "*) mkdir -p "$3/bin" && cp "$0" "$3/bin/python" ;;
"-m pip install --quiet -r "*) cp "$6" pins ;;
*'version("torch")'*) echo "$INSTALLED_TORCH" ;;
esac
"""


@pytest.fixture
def clone(tmp_path):
    """
    Return a folder with the files that the setup script reads, and fake Pythons.
    """
    for name in ("scripts/setup.sh", "requirements.lock", "pyproject.toml"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        shutil.copy(ROOT / name, tmp_path / name)
    for folder in ("clean", "active/bin"):
        python = tmp_path / folder / "python"
        python.parent.mkdir(parents=True)
        python.write_text(FAKE_PYTHON)
        python.chmod(0o755)
    return tmp_path


def set_up(clone, **variables):
    """
    Run the setup script with the fake Python, and return the pins of torch and setuptools.
    """
    subprocess.run(
        [clone / "scripts" / "setup.sh"],
        env={"PATH": "/usr/bin:/bin", "PYTHON": str(clone / "clean" / "python"), **variables},
        check=True,
        capture_output=True,
        timeout=30,
    )
    return re.findall(r"^(?:torch|setuptools)[=>]=.*", (clone / "pins").read_text(), re.MULTILINE)


def test_setup_installs_what_is_pinned(clone):
    """
    Without TORCH the environment is .venv, with the pinned packages that CI uses.
    """
    locked = (ROOT / "requirements.lock").read_text()
    set_up(clone)
    assert (clone / "pins").read_text() == locked
    assert (clone / ".venv" / "ddp-lessons.stamp").is_file()
    assert not (clone / "build").exists()


def test_setup_makes_an_environment_for_another_torch(clone):
    """
    With TORCH a separate environment is made, so that one test run changes neither .venv nor the
    active environment.
    """
    active = clone / "active"
    pins = set_up(clone, TORCH="2.14.1", VIRTUAL_ENV=str(active), INSTALLED_TORCH="2.12.0")
    assert pins == ["setuptools>=77", "torch==2.14.1"]
    assert (clone / "build" / "torch-2.14.1" / "ddp-lessons.stamp").is_file()
    assert sorted(path.name for path in active.iterdir()) == ["bin"]
    assert not (clone / ".venv").exists()


def test_setup_leaves_the_torch_of_an_active_environment(clone):
    """
    The torch of an active environment is kept, because on a GPU machine it fits the driver. If the
    course does not support it, pip installs the pinned one.
    """
    active = str(clone / "active")
    pins = set_up(clone, VIRTUAL_ENV=active, INSTALLED_TORCH="2.11.0+cu126")
    assert pins == ["setuptools>=77", "torch==2.11.0+cu126"]
    (clone / "active" / "ddp-lessons.stamp").unlink()
    locked = (ROOT / "requirements.lock").read_text()
    set_up(clone, VIRTUAL_ENV=active, INSTALLED_TORCH="")
    assert (clone / "pins").read_text() == locked


def test_readme_says_which_versions_were_run():
    """
    The README lists which versions were tested, and they agree with the doctor's. A promised but
    untested version must be recognisable.
    """
    text = (ROOT / "README.md").read_text()
    rows = re.findall(r"^\| 3\.\d+ .*\|$", text, re.MULTILINE)
    assert {row.split()[1] for row in rows} == PYTHONS
    torches = re.findall(r"\d+\.\d+\.\d+", " ".join(row.split("|")[2] for row in rows))
    pinned = re.search(r"^torch==(.*)$", (ROOT / "requirements.lock").read_text(), re.MULTILINE)
    assert max(torches, key=Version) == NEWEST_TRIED_TORCH
    assert min(torches, key=Version) == f"{OLDEST_TORCH}.0"
    assert pinned[1] in torches


def test_texts_name_the_version_of_the_package():
    """
    The changelog begins with the package's version, and README's wheels have it in their names,
    because a learner compares the two with the output of `ddp-lessons --version`.
    """
    changelog = (ROOT / "CHANGELOG.md").read_text()
    assert re.search(r"^## (.+)$", changelog, re.MULTILINE)[1] == __version__
    wheels = re.findall(r"ddp_lessons-([\d.]+)-py3", (ROOT / "README.md").read_text())
    assert set(wheels) == {__version__}


def workflow(name):
    """
    Return one of GitHub's workflows, and the commands of each of its jobs.
    """
    text = yaml.safe_load((WORKFLOWS / name).read_text())
    return text, {
        job: [step["run"] for step in content["steps"] if "run" in step]
        for job, content in text["jobs"].items()
    }


def test_workflow_of_changes_runs_what_ci_runs():
    """
    The workflow for changes runs .ci/run, because different commands could pass what .ci/run
    refuses.
    """
    text, commands = workflow("ci.yml")
    assert {"push", "pull_request"} <= set(text[True])  # YAML reads "on" as true
    (command,) = commands["run"]
    assert command.endswith("bash .ci/run")


def test_workflow_of_the_night_runs_every_test_and_every_version():
    """
    The nightly workflow runs all tests and all promised versions, so that no promise breaks
    unnoticed.
    """
    text, commands = workflow("nightly.yml")
    assert "schedule" in text[True]
    assert "make test-all" in commands["all"][-1]
    # A test of nbgrader is skipped where it is not installed.
    assert "workshop/install.sh --nbgrader" in commands["all"][-1]
    assert 'make test TORCH="$TORCH"' in commands["versions"]
    runs = text["jobs"]["versions"]["strategy"]["matrix"]["include"]
    assert {run["python"] for run in runs} == PYTHONS
    torches = {run.get("torch") for run in runs}
    assert {f"{OLDEST_TORCH}.0", NEWEST_TRIED_TORCH, "newest"} <= torches
    assert {"ubuntu-latest", "macos-latest"} == {run["os"] for run in runs}


def test_workflows_use_the_same_actions_and_may_only_read():
    """
    All workflows use the same version of an action, and may only read the repository, because a
    token with write access is worth stealing.
    """
    actions = {}
    for path in WORKFLOWS.glob("*.yml"):
        text = yaml.safe_load(path.read_text())
        assert text["permissions"] == {"contents": "read"}, path.name
        for used in re.findall(r"uses: (\S+)@(\S+)", path.read_text()):
            actions.setdefault(used[0], set()).add(used[1])
    assert all(len(versions) == 1 for versions in actions.values()), actions
