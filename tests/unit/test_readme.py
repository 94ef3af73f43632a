"""
Files to which the README links, and commands that it names.
"""

import re

from paths import ROOT

MOST_BYTES = 400_000  # a page that opens at once


def test_readme_links_to_files_that_exist():
    """
    The README links to files that exist, because a missing picture is the first thing that a
    visitor would see.
    """
    links = re.findall(r"\]\((?!https?:|#)([^)]+)\)", (ROOT / "README.md").read_text())
    assert "docs/lesson_00.png" in links
    assert [link for link in links if not (ROOT / link).exists()] == []


def test_readme_picture_is_small():
    """
    The README's picture is small, because every visitor loads it, and every clone contains it.
    """
    assert (ROOT / "docs" / "lesson_00.png").stat().st_size < MOST_BYTES


def test_readme_names_the_command_by_which_ci_tests():
    """
    The README names the test command of `.ci/run`, below the command by which a learner starts.
    """
    commands = re.findall(r"^\$ (make \w+)", (ROOT / "README.md").read_text(), re.MULTILINE)
    assert commands[0] == "make lab"
    assert "make test" in commands
    assert "make test" in (ROOT / ".ci" / "run").read_text()
