"""
Lists that cannot be derived from the folders: each must agree with them.
"""

import re
import tomllib

import pytest
from lessons import STEMS
from paths import ROOT

from ddp_lessons.checks.kit.task_registry import all_tasks

PACKAGE = ROOT / "ddp_lessons"
RUNS_LESSONS = {"private", "jobs", "progress", "ranks", "checks", "course"}
"""
Packages that run the lessons. All others are the textbook, each line of which a test reaches.
"""
NUMBERS = {
    16: "sixteen", 17: "seventeen", 18: "eighteen", 19: "nineteen", 20: "twenty",
    21: "twenty-one", 22: "twenty-two", 23: "twenty-three", 24: "twenty-four",
}  # fmt: skip
"""
The words for numbers of lessons, of which texts may have one.
"""
MODULE = re.compile(r"`((?:ddp_lessons[./])?(?:\w+[./])+\w+\.py)`")
DOTTED = re.compile(r"`((?:ddp_lessons|checks|kit|private)\.[a-z_.]+[a-z_])`")


def test_coverage_counts_each_package_of_the_textbook():
    """
    A new package whose lines nobody counts would have untested lines, in silence.
    """
    config = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["coverage"]["report"]
    packages = {path.parent.name for path in PACKAGE.glob("*/__init__.py")} - RUNS_LESSONS
    expected = sorted(f"ddp_lessons/{name}/*" for name in packages)
    assert sorted(config["include"]) == expected, "edit include of [tool.coverage.report]"
    for name in config["omit"]:
        assert (ROOT / name).is_file(), f"omit of [tool.coverage.report] names {name}"


@pytest.mark.parametrize("name", ["README.md", "exercises/README.md", "CHANGELOG.md"])
def test_texts_count_the_tasks_that_there_are(name):
    """
    "66 tasks in all", and "eighteen lessons", are read by somebody who plans a workshop.
    """
    headings = [
        heading
        for path in (ROOT / "exercises" / "py").glob("*.py")
        for heading in re.findall(r"^# ## \d\d\.\d+ ", path.read_text(), re.MULTILINE)
    ]
    text = (ROOT / name).read_text()
    assert len(STEMS) in NUMBERS, f"add the word for {len(STEMS)} to NUMBERS"
    count = NUMBERS[len(STEMS)]
    right = {f"{len(headings)} tasks", f"{count} lessons", f"{count} notebooks"}
    found = re.findall(
        rf"\b\d+ tasks\b|\b(?:{'|'.join(NUMBERS.values())}) (?:lessons|notebooks)", text
    )
    assert f"{len(headings)} tasks" in found, f"edit {name}: it says nothing of {right}"
    assert set(found) <= right, f"edit {name}: it says {found}; right is {right}"


def test_every_task_is_found_in_its_folder():
    """
    A new module with a Task needs no entry in a list. If two tasks had one name, one would be lost.
    """
    sources = [path.read_text() for path in (PACKAGE / "checks").glob("*/*.py")]
    written = [
        name for text in sources for name in re.findall(r"^(\w+) = Task\(", text, re.MULTILINE)
    ]
    assert sorted(task.name for task in all_tasks().values()) == sorted(written)


def texts():
    """
    Return the files in which maintainers read of modules: the code, and the pages for them.
    """
    folders = ("ddp_lessons", "tests", "benchmarks", "scripts", "docs")
    pages = (ROOT / "CONTRIBUTING.md", *(ROOT / "docs").glob("*.md"))
    return [*(path for folder in folders for path in (ROOT / folder).rglob("*.py")), *pages]


def is_there(name):
    """
    Return whether a path or a dotted name leads to a module, or to a name in one.
    """
    parts = name.removesuffix(".py").replace("/", ".").split(".")
    if parts[0] == "kit":
        parts = ["checks", *parts]
    for base in (PACKAGE, PACKAGE / "ranks", PACKAGE / "checks", ROOT, *_folders_of_tests()):
        path = base.joinpath(*parts[parts[0] == "ddp_lessons" :])
        if path.with_suffix(".py").is_file() or path.is_dir():
            return True
        for module in (path.parent.with_suffix(".py"), path.parent / "__init__.py"):
            if module.is_file() and re.search(rf"\b{parts[-1]}\b", module.read_text()):
                return not name.endswith(".py")
    return False


def _folders_of_tests():
    return [ROOT / "tests", ROOT / "tests" / "answers" / "wrong_answers", ROOT / "docs" / "site"]


def test_modules_that_texts_name_are_there():
    """
    A docstring that names a module that has moved sends its reader into nothing.
    """
    lost = []
    for path in texts():
        text = path.read_text().replace("profile_default/", "")  # a file of IPython's
        named = {*MODULE.findall(text), *DOTTED.findall(text)}
        lost += [f"{path.relative_to(ROOT)}: {name}" for name in named if not is_there(name)]
    assert lost == []
