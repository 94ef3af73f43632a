"""
One stem names all files of a notebook, and the course is found from wherever one stands.
"""

import pytest
from paths import ROOT
from toy_lesson import make_course

from ddp_lessons.course.notebooks import notebook_paths
from ddp_lessons.course.notebooks.notebook_paths import all_notebooks, choose, find_root
from ddp_lessons.errors import BadInput


def test_find_root_goes_up(tmp_path):
    """
    A command works from any folder of the course.
    """
    make_course(tmp_path)
    assert find_root(tmp_path / "notebooks/py") == tmp_path
    assert find_root(tmp_path) == tmp_path


def test_find_root_says_what_is_missing(tmp_path):
    """
    Outside the course there is nothing to build.
    """
    with pytest.raises(BadInput, match=r"^No course found: .*--root"):
        find_root(tmp_path)


def test_find_course_where_we_stand_comes_first(tmp_path):
    """
    A learner may stand in notebooks/ when typing the command, and have several clones.
    """
    make_course(tmp_path)
    assert notebook_paths.find_course(tmp_path / "notebooks") == tmp_path


def test_find_course_of_the_clone_that_the_package_lies_in(tmp_path):
    """
    From anywhere else the course is where the package is.
    """
    assert notebook_paths.find_course(tmp_path) == ROOT
    assert not notebook_paths.is_installed(ROOT)


def test_find_course_without_one_says_what_to_do(tmp_path, monkeypatch):
    """
    An empty folder would leave a learner alone.
    """
    monkeypatch.setattr(notebook_paths, "__file__", str(tmp_path / "a" / "b" / "places.py"))
    monkeypatch.setattr(notebook_paths.metadata, "files", lambda name: None)
    with pytest.raises(BadInput, match=r"^The lessons are not here: .* Change to your clone"):
        notebook_paths.find_course(tmp_path)


def test_all_notebooks_names_lessons_and_exercises(tmp_path):
    """
    A notebook without a text, and a text without a notebook, are found too.
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
    A stem names a lesson and its exercise; a wrong one is answered with the right ones.
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
    Whoever works on an exercise does not wait for its lesson.
    """
    make_course(tmp_path)
    make_course(tmp_path, kind="exercise")
    assert [place.kind for place in choose(tmp_path, [name])] == [kind]
