"""
Files to which the README links.
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
