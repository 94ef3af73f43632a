"""
What the README points to is there.
"""

import re

from paths import ROOT

MOST_BYTES = 400_000  # a page that opens at once


def test_readme_links_to_files_that_exist():
    """
    A picture that is missing is the first thing that a visitor sees.
    """
    links = re.findall(r"\]\((?!https?:|#)([^)]+)\)", (ROOT / "README.md").read_text())
    assert "docs/lesson_00.png" in links
    assert [link for link in links if not (ROOT / link).exists()] == []


def test_readme_picture_is_small():
    """
    It is loaded by everyone who looks at the project, and is part of every clone.
    """
    assert (ROOT / "docs" / "lesson_00.png").stat().st_size < MOST_BYTES
