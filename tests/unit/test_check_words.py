"""
The check of docstrings, comments, messages and pages finds unclear words and accepts plain ones.
"""

import sys

import pytest
from paths import ROOT


@pytest.fixture
def check_words(monkeypatch):
    """
    Return the module that `make lint` runs.
    """
    monkeypatch.syspath_prepend(ROOT / "scripts")
    import check_words

    yield check_words
    sys.modules.pop("check_words", None)


@pytest.mark.parametrize(
    ("source", "line", "fault"),
    [
        ('"""\nWho waits is not woken.\n"""', 2, '"Who" begins'),
        ('"""\nWhat a rank has printed.\n"""', 2, '"What" begins'),
        ('"""\nReturn it. Of two ranks the\nfirst counts.\n"""', 2, '"Of" begins'),
        ('"""\nA rank.\n\nArgs:\n    rank: Whoever sends.\n"""', 5, '"Whoever" begins'),
        ("x = 1  # Nobody waits.", 1, '"Nobody" begins'),
        ("# All is well.\n# Such a rank is replaced.", 2, '"Such a" begins'),
        ("# One that sends is replaced.", 1, '"One that" begins'),
        ('def f():\n    """\n    See `g`.\n    """', 3, "says nothing here"),
        ('"""\nA.\n\nArgs:\n    rank: As `join`.\n"""', 5, "says nothing here"),
        ("# The bytes are foretold.", 1, '"foretold": write predict'),
        ("# The rank is through\n# by then.", 1, '"is through": write'),
        ("FIELD = 1\n'''\nIt comes up late.\n'''", 3, '"comes up": write'),
    ],
)
def test_faults_are_found_with_their_line(check_words, source, line, fault):
    """
    Each fault is reported with its line, so that nobody has to search 320 lines.
    """
    found = check_words.faults_of("a.py", source)
    assert len(found) == 1
    assert found[0].startswith(f"a.py:{line}: ")
    assert fault in found[0]


@pytest.mark.parametrize(
    ("name", "source", "line", "fault"),
    [
        ("ddp_lessons/checks/ring/a.py", "x = {\n'a': 'Who waits ' 'is not woken.'}", 2, '"Who"'),
        (
            "ddp_lessons/checks/kit/a.py",
            'f(f"Rank {rank} waits. Of {n} ranks one goes.")',
            1,
            '"Of"',
        ),
        ("README.md", "# A\n\n- A rank waits.\n- Who waits\n  is not woken.", 4, '"Who"'),
    ],
)
def test_faults_are_found_in_messages_and_pages(check_words, name, source, line, fault):
    """
    Learners read the messages of checks and the pages, so both are read as docstrings are.
    """
    found = check_words.faults_of(name, source)
    assert len(found) == 1
    assert found[0].startswith(f"{name}:{line}: {fault} begins")


@pytest.mark.parametrize(
    ("name", "source"),
    [
        ("ddp_lessons/checks/ring/a.py", "x = 'What rank 0 sent'"),  # a label
        ("ddp_lessons/checks/launch/a.py", "x = 'Who waits is not woken.'"),
        ("ddp_lessons/ring/a.py", "x = 'Who waits is not woken.'"),
        ("README.md", "# What is here\n\n```\nWho waits.\n```\n\n| Who | What |\n<b>Who\n\n`Who`."),
    ],
)
def test_other_strings_code_headings_and_tables_are_not_read(check_words, name, source):
    """
    Labels, messages that are not yet rewritten, code, headings and tables are not sentences.
    """
    assert check_words.faults_of(name, source) == []


@pytest.mark.parametrize(
    "source",
    [
        '"""\nReturn the rank that waits.\n"""',
        "# What is a rank? A process.",
        "# What is the sum: (a) 1, or (b) 2?",
        "x = 'Who waits is not woken.'",
        "# The cable is through a wall: it `is through` there.",
        "x = 1  # noqa: Nobody",
        '"""\nThe ranks, as `join` returns them. Offices are closed.\n"""',
    ],
)
def test_plain_words_pass(check_words, source):
    """
    Plain sentences pass, because a check that rejects good sentences is soon switched off.
    """
    assert check_words.faults_of("a.py", source) == []


def test_a_use_that_is_allowed_passes_in_its_file_only(check_words, monkeypatch):
    """
    An allowed word passes in its file only, because its reason holds for that file only.
    """
    monkeypatch.setattr(check_words, "ALLOWED", {("a.py", "nanny"): "ipyparallel's word"})
    assert check_words.faults_of("a.py", "# The nanny ends.") == []
    assert len(check_words.faults_of("b.py", "# The nanny ends.")) == 1


def test_each_path_that_is_not_yet_rewritten_exists(check_words):
    """
    Each path of the list begins the name of some file. A stale one would leave its files out, or
    check them, by mistake.
    """
    assert [path for path in check_words.NOT_YET_REWRITTEN if not list(ROOT.glob(f"{path}*"))] == []


def test_only_files_of_the_repository_are_read(check_words):
    """
    Only files of the repository are read: a virtual environment has thousands of others.
    """
    names = check_words.files_of([])
    assert {"scripts/check_words.py", "docs/board.md", "exercises/README.md"} <= set(names)
    assert not any(name.startswith((*check_words.NOT_YET_REWRITTEN, ".venv")) for name in names)
    assert check_words.files_of(["ddp_lessons/ring"])
