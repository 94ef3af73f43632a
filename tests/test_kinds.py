"""
Kinds of tests: what a plain run leaves out is named, and is run by another command.
"""

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
