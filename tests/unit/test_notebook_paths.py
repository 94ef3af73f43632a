"""
The paths of a notebook's files follow from its lesson id, and the course is found from any folder.
"""

import pytest
from paths import ROOT
from toy_lesson import make_course

from ddp_lessons.course.notebooks import notebook_paths
from ddp_lessons.course.notebooks.notebook_paths import all_notebooks, choose, find_root
from ddp_lessons.errors import BadInput


def test_find_root_goes_up(tmp_path):
    """
    The course's root is found from a folder inside it, so that commands work there.
    """
    make_course(tmp_path)
    assert find_root(tmp_path / "notebooks/py") == tmp_path
    assert find_root(tmp_path) == tmp_path


def test_find_root_says_what_is_missing(tmp_path):
    """
    Outside of a course the error says which option names one.
    """
    with pytest.raises(BadInput, match=r"^No course found: .*--root"):
        find_root(tmp_path)


def test_find_course_where_we_stand_comes_first(tmp_path):
    """
    The course of the current folder comes first, because a learner may have several clones.
    """
    make_course(tmp_path)
    assert notebook_paths.find_course(tmp_path / "notebooks") == tmp_path


def test_find_course_of_the_clone_that_the_package_lies_in(tmp_path):
    """
    From any other folder, the course is the clone that contains the package.
    """
    assert notebook_paths.find_course(tmp_path) == ROOT
    assert not notebook_paths.is_installed(ROOT)


def test_find_course_without_one_says_what_to_do(tmp_path, monkeypatch):
    """
    Without a course the error says what to do.
    """
    monkeypatch.setattr(notebook_paths, "__file__", str(tmp_path / "a" / "b" / "places.py"))
    monkeypatch.setattr(notebook_paths.metadata, "files", lambda name: None)
    with pytest.raises(BadInput, match=r"^The lessons are not here: .* Change to your clone"):
        notebook_paths.find_course(tmp_path)


def test_all_notebooks_names_lessons_and_exercises(tmp_path):
    """
    All lessons and exercises are found, also a notebook without a text twin, and a text twin
    without a notebook.
    """
    lesson, exercise = make_course(tmp_path), make_course(tmp_path, kind="exercise")
    (tmp_path / "notebooks/executed/01_alone.ipynb").write_text("{}")
    found = all_notebooks(tmp_path)
    assert [place.stem for place in found] == ["00_toy", "01_alone", "00_toy"]
    assert found[0] == lesson
    assert found[2] == exercise
    assert [place.is_lesson for place in found] == [True, True, False]


def test_choose_by_stem(tmp_path):
    """
    A lesson id chooses a lesson and its exercise. For a wrong one the error lists the right ones.
    """
    make_course(tmp_path)
    make_course(tmp_path, kind="exercise")
    make_course(tmp_path, stem="01_toy")
    assert len(choose(tmp_path)) == 3
    assert [place.kind for place in choose(tmp_path, ["00_toy"])] == ["lesson", "exercise"]
    for wrong in ("02_toy", "tests/00_toy"):
        with pytest.raises(BadInput, match=rf"expected one of 00_toy, 01_toy \(got {wrong}\)"):
            choose(tmp_path, [wrong])


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("exercises/00_toy", "exercise"),
        ("exercises/py/00_toy.py", "exercise"),
        ("notebooks/00_toy", "lesson"),
        ("/home/me/course/notebooks/executed/00_toy.ipynb", "lesson"),
    ],
)
def test_choose_one_of_the_two(tmp_path, name, kind):
    """
    A path chooses only the lesson or only the exercise, so that an exercise's author need not wait
    for its lesson.
    """
    make_course(tmp_path)
    make_course(tmp_path, kind="exercise")
    assert [place.kind for place in choose(tmp_path, [name])] == [kind]
