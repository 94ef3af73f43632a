"""
The glossary in CONTRIBUTING: each word has one meaning and a module that exists.
"""

import re
from collections import Counter

import pytest
from paths import ROOT

PACKAGE = ROOT / "ddp_lessons"
ROLES = {"__init__", "__main__", "example", "naive"}
"""
File names that several subjects may have, because they name a role.
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
    The number of rows is plausible. If the table's form changed, the regular expression would find
    none.
    """
    assert 50 <= len(rows()) <= 80


@pytest.mark.parametrize(("word", "meaning", "module"), rows())
def test_each_word_has_one_meaning_and_a_module(word, meaning, module):
    """
    Each word has one row and a module that exists, so that a reader finds it.
    """
    assert Counter(each for each, _, _ in rows())[word] == 1
    assert (PACKAGE / module).exists() or (ROOT / module).exists()
    assert meaning[0].islower()
    assert not meaning.endswith(".")


def runtime_files():
    """
    Return the paths of all modules of the runtime, the checks' kit and the course.
    """
    folders = ("private", "ranks", "progress", "checks/kit", "course")
    return [path for folder in folders for path in sorted((PACKAGE / folder).rglob("*.py"))]


def test_no_two_modules_share_a_name():
    """
    No two modules have one name, because a search for one `stacks.py` would find the other.
    """
    names = Counter(path.stem for path in runtime_files() if path.stem not in ROLES)
    assert [name for name, count in names.items() if count > 1] == []


SHARED_CLASSES = {
    "Job": "lesson 15 imports the mesh's Job, and learners keep copies of that lesson",
}
"""
Names that two public classes of the package have, with the reason.
"""


def test_no_two_public_classes_share_a_name():
    """
    No two public classes have one name, because a traceback and a description of an argument show
    only the class's name. Rename the class that neither lessons nor learners import.
    """
    names = Counter(
        name
        for path in sorted(PACKAGE.rglob("*.py"))
        for name in re.findall(r"^class ([A-Z]\w*)", path.read_text(), re.MULTILINE)
    )
    assert {name for name, count in names.items() if count > 1} == set(SHARED_CLASSES)
