"""
One stem names both files of a notebook.
"""

import pytest
from toy_lesson import make_course

from ddp_lessons.course.places import all_places, choose, find_root
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


def test_all_places_names_lessons_and_exercises(tmp_path):
    """
    A notebook without a text, and a text without a notebook, are found too.
    """
    lesson, exercise = make_course(tmp_path), make_course(tmp_path, kind="exercise")
    (tmp_path / "notebooks/01_alone.ipynb").write_text("{}")
    places = all_places(tmp_path)
    assert [place.stem for place in places] == ["00_toy", "01_alone", "00_toy"]
    assert places[0] == lesson
    assert places[2] == exercise
    assert [place.is_lesson for place in places] == [True, True, False]


def test_choose_by_stem(tmp_path):
    """
    A stem names a lesson and its exercise; a wrong one is answered with the right ones.
    """
    make_course(tmp_path)
    make_course(tmp_path, kind="exercise")
    make_course(tmp_path, stem="01_toy")
    assert len(choose(tmp_path)) == 3
    assert [place.kind for place in choose(tmp_path, ["00_toy"])] == ["lesson", "exercise"]
    with pytest.raises(BadInput, match=r"expected one of 00_toy, 01_toy \(got 02_toy\)"):
        choose(tmp_path, ["02_toy"])
