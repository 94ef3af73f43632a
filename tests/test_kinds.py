"""
Kinds of tests: what a plain run leaves out is named, and is run by another command.
"""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from kinds import AROUND, BANK

ROOT = Path(__file__).parents[1]
STEMS = [path.stem.removeprefix("test_") for path in ROOT.glob("tests/test_*.py")]


@pytest.mark.parametrize("name", AROUND)
def test_names_of_what_is_around_begin_those_of_files(name):
    """
    A file that got another name would be back in every run, and nobody would see why it is slow.
    """
    assert any(stem.startswith(name) for stem in STEMS)
    assert not BANK.removeprefix("test_").startswith(name)


@pytest.mark.parametrize("command", ["make test", "make around", "make bank", "make soak"])
def test_ci_runs_every_kind(command):
    """
    What no command runs is not tested.
    """
    assert command in (ROOT / ".ci" / "run").read_text()


@pytest.mark.parametrize(
    ("options", "names"),
    [
        ([], {"ring"}),
        (["-m", "not notebooks"], {"ring"}),
        (["-m", "around"], {"board"}),
        (["-m", "not soak"], {"ring", "board"}),
        (["-k", "board"], {"board"}),
        (["tests/test_board.py"], {"board"}),
    ],
)
def test_what_is_around_is_run_if_it_is_asked_for(options, names, tmp_path):
    """
    Left out of a plain run, and of no other: a word that finds nothing looks like a mistyped one.
    """
    (tmp_path / "tests").mkdir()
    for file in ("pyproject.toml", "tests/conftest.py", "tests/kinds.py"):
        shutil.copy(ROOT / file, tmp_path / file)
    for name in ("ring", "board"):
        (tmp_path / "tests" / f"test_{name}.py").write_text(f"def test_{name}():\n    pass\n")
    command = [sys.executable, "-m", "pytest", "--collect-only", "-q", *options]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True)
    found = {line.rpartition("_")[2] for line in done.stdout.splitlines() if "::" in line}
    assert found == names
