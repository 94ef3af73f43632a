"""
Tests of the process that reads and writes in a learner's home, without another user.

`tests/platform/test_collecting.py` has the same with real users.
"""

import io
import json
from types import SimpleNamespace

import pytest

from ddp_lessons.course.classroom import home_files

FOLDER = "my-course/exercises"


@pytest.fixture
def home(tmp_path, monkeypatch):
    """
    Return a home with one exercise, which is the current folder.
    """
    (tmp_path / FOLDER).mkdir(parents=True)
    (tmp_path / FOLDER / "00_ranks.ipynb").write_text("hers")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(home_files.sys, "stdin", SimpleNamespace(buffer=io.BytesIO(b"a page")))
    return tmp_path


def names_read(capsys):
    """
    Read the exercises, and return the names of the files.
    """
    home_files.read(FOLDER)
    return [json.loads(line)["name"] for line in capsys.readouterr().out.splitlines()]


def test_notebooks_and_archives_are_read_however_their_names_are_written(home, capsys):
    """
    Every kind of archive, and an ending in capitals, is read, so that nothing is left silently.
    """
    names = ["01_x.IPYNB", "a.7z", "a.tar.gz", "b.ZIP"]
    for name in [*names, "notes.txt"]:
        (home / FOLDER / name).write_text("x")
    assert names_read(capsys) == ["00_ranks.ipynb", *names]


@pytest.mark.parametrize("link", ["my-course", FOLDER])
def test_no_part_of_a_path_may_be_a_link(home, capsys, link):
    """
    A folder that is a link is not read, wherever in the path it stands: it may lead to files that
    every user can read. Nothing is written there, either.
    """
    (home / link).rename(home / "other")
    (home / link).symlink_to(home / "other")
    told = rf"^{link.rpartition('/')[2]} is a link, which is not followed$"
    with pytest.raises(SystemExit, match=told):
        home_files.read(FOLDER)
    with pytest.raises(SystemExit, match=told):
        home_files.write(FOLDER, "page.html")
    assert capsys.readouterr().out == ""
    assert not list(home.rglob("page.html"))


def test_a_home_without_a_course_has_no_files_and_gets_a_page(home, capsys):
    """
    The folder for a page is made, and a second page stands beside the first one.
    """
    home_files.read("another/folder")
    assert capsys.readouterr().out == ""
    for number in ("", "-2"):
        home_files.write("another/folder", "page.html")
        assert capsys.readouterr().out == f"another/folder/page{number}.html\n"
    assert (home / "another" / "folder" / "page.html").read_text() == "a page"
