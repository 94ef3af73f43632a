"""
The news at a start of ranks: published notebooks reach a learner whose server runs.

`tests/notebooks/lessons/test_texts.py` tests the message about versions, and both in a real kernel.
"""

import os
import subprocess
import sys

import pytest
from published_course import LESSON, edit_notebook, edit_text, make_clone, sources

from ddp_lessons.course.classroom.publishing import publish
from ddp_lessons.course.learner.workspace import update
from ddp_lessons.ranks.system import version_check

TWIN = "notebooks/py/00_toy.py"


@pytest.fixture
def mine(tmp_path, monkeypatch):
    """
    Return a learner's folder, after whose last update a teacher has published an edited lesson.

    The current notebook is another one of the folder.
    """
    monkeypatch.delenv("DDP_LESSONS_PUBLISHED", raising=False)
    course, mine = make_clone(tmp_path), tmp_path / "mine"
    update(mine, course)
    edit_text(course / TWIN, "A sum that is wrong", "A wrong sum")
    publish(course, lambda line: None)
    monkeypatch.setenv("JPY_SESSION_NAME", str(mine / "notebooks/other.ipynb"))
    monkeypatch.setattr(version_check, "_open_notebooks", lambda: {os.environ["JPY_SESSION_NAME"]})
    return mine


def test_an_unopened_notebook_is_renewed(mine):
    """
    A notebook that no kernel has open is renewed with its predictions, and the learner is told
    once.
    """
    edit_notebook(mine / LESSON, 'predict("first", ...)', 'predict("first", 41)')
    said = version_check.news(mine / "notebooks")
    assert said == f"News of the course: brought up to date: {LESSON}."
    text = sources(mine / LESSON)
    assert "A wrong sum" in text
    assert 'predict("first", 41)' in text
    assert version_check.news(mine / "notebooks") == ""
    assert str(update(mine, mine.with_name("course"))) == ""


@pytest.mark.parametrize("case", ["here", "elsewhere", "unknown", "edited"])
def test_a_notebook_that_may_be_open_or_is_edited_stays(mine, monkeypatch, case):
    """
    A notebook that is open in this kernel or another one stays, also where kernels cannot be
    listed, and so does an edited one. The line says where the new version is.
    """
    if case == "here":
        monkeypatch.setenv("JPY_SESSION_NAME", str(mine / LESSON))
    if case == "elsewhere":
        opened = {os.environ["JPY_SESSION_NAME"], str(mine / LESSON)}
        monkeypatch.setattr(version_check, "_open_notebooks", lambda: opened)
    if case == "unknown":
        monkeypatch.setattr(version_check, "_open_notebooks", set)
    if case == "edited":
        edit_notebook(mine / LESSON, "print(41)", "print(40)")
    before = (mine / LESSON).read_bytes()
    said = version_check.news(mine / "notebooks")
    assert said == (
        f"News of the course: {LESSON}: yours is kept, the new one is notebooks/00_toy.new.ipynb."
    )
    assert (mine / LESSON).read_bytes() == before
    assert "A wrong sum" in sources(mine / "notebooks/00_toy.new.ipynb")
    assert version_check.news(mine / "notebooks") == ""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="only Linux lists environments")
def test_notebooks_of_running_kernels_are_found(tmp_path):
    """
    The notebooks of this user's kernels are found by the variable that Jupyter's server sets.
    """
    names = {str(tmp_path / name) for name in ("00_a.ipynb", "ü b.ipynb")}
    command = [sys.executable, "-c", "input()"]
    children = [
        subprocess.Popen(
            command, stdin=subprocess.PIPE, env={**os.environ, "JPY_SESSION_NAME": name}
        )
        for name in names
    ]
    assert names <= version_check._open_notebooks()
    for child in children:
        child.communicate(b"\n")
    assert not names & version_check._open_notebooks()


def test_outside_of_a_jupyter_server_nothing_is_changed(mine, monkeypatch, tmp_path):
    """
    A kernel that no Jupyter server has started, as of `ddp-lessons check`, takes nothing: nobody
    would read the line. Outside of a learner's folder there is no news either.
    """
    assert version_check.news(tmp_path) == ""
    monkeypatch.delenv("JPY_SESSION_NAME")
    assert version_check.news(mine) == ""
    assert "A sum that is wrong" in sources(mine / LESSON)


@pytest.mark.parametrize("text", ["", "[1]", '{"notebooks/00_toy.ipynb"', None])
def test_damaged_news_are_told_and_stop_nothing(mine, text):
    """
    News that cannot be read are told in one line, and the ranks start.
    """
    path = mine.with_name("course-published") / version_check.PUBLISHED
    path.unlink() if text is None else path.write_text(text)
    said = version_check.news(mine)
    assert said == "" if text is None else said.startswith("A published lesson could not be read")
    assert "\n" not in said


def test_many_news_come_a_few_at_a_time(mine, monkeypatch):
    """
    A start of ranks renews a few notebooks at most, so that no learner waits; the next starts renew
    the others.
    """
    monkeypatch.setattr(version_check, "_MOST_AT_ONCE", 1)
    course = mine.with_name("course")
    edit_text(course / "exercises/py/00_toy.py", "add numbers", "add some numbers")
    publish(course, lambda line: None)
    said = [version_check.news(mine) for _ in range(3)]
    assert sorted(said) == [
        "",
        "News of the course: brought up to date: exercises/00_toy.ipynb.",
        f"News of the course: brought up to date: {LESSON}.",
    ]
