"""
The glossary in CONTRIBUTING: one meaning a word, and a module for each that is there.
"""

import re
from collections import Counter

import pytest
from paths import ROOT

PACKAGE = ROOT / "ddp_lessons"
ROLES = {"__init__", "__main__", "example", "naive"}
"""
File names that are roles: several subjects have one.
"""


def rows():
    """
    Return (word, meaning, module) of each row of the glossary.
    """
    text = (ROOT / "CONTRIBUTING.md").read_text()
    glossary = text.partition("## Glossary")[2].partition("\n## ")[0]
    return re.findall(r"^\| ([^|`]+?) \| ([^|]+?) \| `([^`]+)` \|$", glossary, re.MULTILINE)


def test_the_glossary_has_about_sixty_words():
    """
    A regular expression that has ceased to fit would find none.
    """
    assert 50 <= len(rows()) <= 80


@pytest.mark.parametrize(("word", "meaning", "module"), rows())
def test_each_word_has_one_meaning_and_a_module(word, meaning, module):
    """
    A reader who follows a word must find its module, and no second row for it.
    """
    assert Counter(each for each, _, _ in rows())[word] == 1
    assert (PACKAGE / module).exists() or (ROOT / module).exists()
    assert meaning[0].islower()
    assert not meaning.endswith(".")


def runtime_files():
    """
    Return the modules of the runtime, the checks' kit and the course, by their names.
    """
    folders = ("private", "ranks", "progress", "checks/kit", "course")
    return [path for folder in folders for path in sorted((PACKAGE / folder).rglob("*.py"))]


def test_no_two_modules_share_a_name():
    """
    `stacks.py` in two folders with different matter: a search for one finds the other.
    """
    names = Counter(path.stem for path in runtime_files() if path.stem not in ROLES)
    assert [name for name, count in names.items() if count > 1] == []


def test_no_two_public_classes_share_a_name():
    """
    A traceback or an argument's description gives the class's name alone.
    """
    names = Counter(
        name
        for path in runtime_files()
        for name in re.findall(r"^class ([A-Z]\w*)", path.read_text(), re.MULTILINE)
    )
    assert [name for name, count in names.items() if count > 1] == []
