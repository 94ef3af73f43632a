"""
pyproject.toml, environment.yml and requirements.lock name the same packages and versions.

conda cannot run in CI, so these tests keep its environment up to date.
"""

import os
import re
import subprocess
import sys
import tomllib
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name
from paths import ROOT

CONDA_NAMES = {"pytorch": "torch", "matplotlib-base": "matplotlib"}
"""
conda-forge's names of packages that have other names in pyproject.toml.
"""
CONDA_ONLY = {"python", "pip", "make"}


def read_pyproject(text):
    """
    Return the Python range and the requirements (two extras included) as {name: SpecifierSet}.
    """
    project = tomllib.loads(text)["project"]
    extras = project["optional-dependencies"]
    lines = project["dependencies"] + extras["dev"] + extras["frameworks"]
    requirements = [Requirement(line) for line in lines]
    return SpecifierSet(project["requires-python"]), {
        canonicalize_name(requirement.name): requirement.specifier for requirement in requirements
    }


def read_environment(text):
    """
    Return the Python range and the packages of a conda environment, under pyproject.toml's names.
    """
    packages = {}
    for line in yaml.safe_load(text)["dependencies"]:
        for item in line["pip"] or () if isinstance(line, dict) else [line]:
            # conda writes python=3.12.* where pip writes python==3.12.*
            requirement = Requirement(re.sub(r"^(\w+)=(?!=)", r"\1==", item))
            name = CONDA_NAMES.get(requirement.name, requirement.name)
            packages[canonicalize_name(name)] = requirement.specifier
    python = packages["python"]
    return python, {name: spec for name, spec in packages.items() if name not in CONDA_ONLY}


def read_lock(text):
    """
    Return {name: version text} of the lock file. Any line but `name==version [; marker]` is an
    error.
    """
    pins = {}
    for line in text.splitlines():
        if line and not line.startswith("#"):
            requirement = Requirement(line)
            (specifier,) = requirement.specifier
            assert specifier.operator == "==", f"{line} is no pin"
            assert "*" not in specifier.version, f"{line} is no pin"
            assert "+" not in specifier.version, f"{line} names one build of a version"
            pins[canonicalize_name(requirement.name)] = specifier.version
    return pins


def differences(pyproject, environment, lock):
    """
    Return the differences of the three files as sentences; [] if they agree.
    """
    python, wanted = read_pyproject(pyproject)
    conda_python, conda = read_environment(environment)
    pins = read_lock(lock)
    found = []
    (version,) = (specifier.version.removesuffix(".*") for specifier in conda_python)
    if not python.contains(version):
        found.append(f"Python: pyproject.toml has {python}, environment.yml {conda_python}")
    found += [f"{name} is missing in environment.yml" for name in wanted.keys() - conda.keys()]
    found += [f"{name} is missing in pyproject.toml" for name in conda.keys() - wanted.keys()]
    found += [f"{name} is missing in requirements.lock" for name in wanted.keys() - pins.keys()]
    for name in wanted.keys() & conda.keys():
        if wanted[name] != conda[name]:
            found.append(
                f"{name}: pyproject.toml has {wanted[name]}, environment.yml {conda[name]}"
            )
    for name in wanted.keys() & pins.keys():
        if not wanted[name].contains(pins[name]):
            found.append(f"{name}: {pins[name]} is pinned, pyproject.toml has {wanted[name]}")
    return found


def texts():
    """
    Return the three files' texts.
    """
    names = ("pyproject.toml", "environment.yml", "requirements.lock")
    return [(ROOT / name).read_text() for name in names]


def pinned_distributions():
    """
    Yield the metadata of each package that is installed here at its pinned version.
    """
    for name, version in read_lock(texts()[2]).items():
        try:
            found = distribution(name)
        except PackageNotFoundError:
            continue
        if found.version.partition("+")[0] == version:
            yield found


def test_environment_files_agree():
    """
    The three files agree, so that a learner on conda and one on pip get the same course.
    """
    assert differences(*texts()) == []


def test_environment_lock_has_what_the_site_needs():
    """
    The lock pins the site's packages. conda's environment lacks them, so only the lock fixes their
    versions.
    """
    extras = tomllib.loads(texts()[0])["project"]["optional-dependencies"]
    pins = read_lock(texts()[2])
    for requirement in map(Requirement, extras["site"]):
        assert requirement.specifier.contains(pins[canonicalize_name(requirement.name)])


@pytest.mark.parametrize(
    ("index", "old", "new", "difference"),
    [
        (0, '"nbval>=', '"nbvals>=', "nbval is missing in pyproject.toml"),
        (1, "  - nbval >=0.11\n", "", "nbval is missing in environment.yml"),
        (1, "pytorch >=2.11", "pytorch >=2.10", "torch: pyproject.toml has >=2.11"),
        (1, "python=3.12.*", "python=3.10.*", "Python: pyproject.toml has"),
        (1, "      - playwright >=1.50\n", "", "playwright is missing in environment.yml"),
        (2, "psutil==", "psutils==", "psutil is missing in requirements.lock"),
        (2, "\nipyparallel==9.", "\nipyparallel==10.", "ipyparallel: 10."),
        (2, "\ntorch==2.", "\ntorch==1.", "torch: 1."),
    ],
)
def test_environment_differences_are_found(index, old, new, difference):
    """
    Each kind of difference is found, so the comparison above can fail.
    """
    changed = texts()
    assert changed[index].count(old) == 1
    changed[index] = changed[index].replace(old, new)
    assert any(found.startswith(difference) for found in differences(*changed))


@pytest.mark.parametrize("line", ["torch>=2.13", "torch==2.*", "torch==2.13.0+cpu", "torch"])
def test_environment_lock_takes_pins_only(line):
    """
    The lock accepts exact versions only, because a loose line gives CI another version each day.
    """
    with pytest.raises((AssertionError, ValueError)):
        read_lock(line)


@pytest.mark.parametrize("python", ["3.11", "3.12", "3.13"])
@pytest.mark.parametrize(("sys_platform", "system"), [("linux", "Linux"), ("darwin", "Darwin")])
def test_environment_lock_is_closed(python, sys_platform, system):
    """
    The lock pins every dependency of its packages, because an unpinned one changes without notice.
    torch's CUDA packages are left out: torch requires exact versions of them.
    """
    elsewhere = {
        "extra": "",
        "python_version": python,
        "python_full_version": f"{python}.0",
        "sys_platform": sys_platform,
        "platform_system": system,
    }
    pins = read_lock(texts()[2])
    missing = set()
    for found in pinned_distributions():
        for line in found.requires or ():
            requirement = Requirement(line)
            name = canonicalize_name(requirement.name)
            if requirement.marker and not requirement.marker.evaluate(elsewhere):
                continue
            if not name.startswith(("nvidia-", "cuda-", "triton")) and name not in pins:
                missing.add(f"{name}, which {found.name} needs")
    assert missing == set()


def test_environment_lock_admits_every_python():
    """
    Every pin installs on the first release of each supported Python: a pin that needs 3.11.5 would
    exclude Debian 12, which has 3.11.2.
    """
    refused = [
        f"{found.name} {found.version} on Python {python}"
        for found in pinned_distributions()
        for python in ("3.11.0", "3.12.0", "3.13.0")
        if not SpecifierSet(found.metadata["Requires-Python"] or "").contains(python)
    ]
    assert refused == []


# The pattern of repo2docker's CondaBuildPack.
REPO2DOCKER_PYTHON = re.compile(r"python\s*=+\s*([\d\.]*)")
REPO2DOCKER_FOLDERS = ("binder", ".binder")


def test_environment_is_read_by_repo2docker():
    """
    repo2docker finds the Python version in environment.yml. It reads one form only, and for any
    other it first builds its default Python and then replaces it.
    """
    lines = yaml.safe_load((ROOT / "environment.yml").read_text())["dependencies"]
    found = [REPO2DOCKER_PYTHON.match(line) for line in lines if isinstance(line, str)]
    (version,) = [match[1] for match in found if match]
    assert ".".join(version.split(".")[:2]) == "3.12"
    # With a package from this folder, repo2docker would copy the folder before it builds the
    # environment.
    packages = [item for line in lines if isinstance(line, dict) for item in line["pip"]]
    assert not any(item.startswith(("-", ".", "/")) for item in packages)


def test_environment_s_scripts_are_where_repo2docker_looks():
    """
    repo2docker finds our scripts: no folder named binder exists, because it would hide
    environment.yml and the scripts.
    """
    assert not any((ROOT / folder).exists() for folder in REPO2DOCKER_FOLDERS)
    for name in ("postBuild", "start"):
        text = (ROOT / name).read_text()
        assert text.startswith("#!")  # repo2docker executes the file itself
        assert os.access(ROOT / name, os.X_OK)
    # A hub may mount a volume over the repository's folder, which would remove an editable install.
    install = (ROOT / "postBuild").read_text()
    assert "pip install" in install
    assert not re.search(r"(?<!\w)(-e|--editable)\b", install)


def test_environment_s_start_gives_the_course_s_settings_and_goes_on():
    """
    The start script sets the course's Jupyter settings and then runs its command: an image opens
    without a question about news, and its kernels encrypt.
    """
    tell = ["python", "-c", "import os; print(os.environ['JUPYTER_CONFIG_PATH'])"]
    # In an image `python` is the environment's. Here it is this process's, whether its environment
    # is activated or not.
    ours = os.environ | {"PATH": os.pathsep.join([str(Path(sys.executable).parent), os.defpath])}
    done = subprocess.run(
        [ROOT / "start", *tell],
        cwd="/",
        env=ours,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip().endswith("ddp_lessons/course/jupyter")
