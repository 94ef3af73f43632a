"""
A learner's own folder: which files are copied, which are updated, and which are never touched.
"""

import json
import shutil

import nbformat
import pytest
from ipykernel.ipkernel import IPythonKernel
from toy_lesson import make_course

from ddp_lessons.course.learner import workspace
from ddp_lessons.course.learner.workspace import enclosing, update
from ddp_lessons.course.notebooks.canonical import read_notebook
from ddp_lessons.course.notebooks.notebook_paths import all_notebooks, find_course
from ddp_lessons.errors import BadInput

LESSON = "notebooks/00_toy.ipynb"
EXERCISE = "exercises/03_ring.ipynb"


@pytest.fixture
def course(tmp_path):
    """
    Return the root of a course of two lessons.
    """
    make_course(tmp_path / "course")
    return make_course(tmp_path / "course", stem="01_toy").text.parents[2]


@pytest.fixture
def mine(tmp_path, course):
    """
    Return a learner's folder that was made from the course.
    """
    update(tmp_path / "mine", course)
    return tmp_path / "mine"


def new_version(course, stem="00_toy"):
    """
    Publish another version of a lesson.
    """
    text = next(place.text for place in all_notebooks(course) if place.stem == stem)
    text.write_text(text.read_text().replace("print(x / 1)", "print(x / 1.0)"))


def edit(path):
    """
    Change a cell, as a learner does.
    """
    notebook = nbformat.read(path, as_version=4)
    notebook.cells[-1].source = "x = 'mine'"
    nbformat.write(notebook, path)


def run(path):
    """
    Add outputs and counts to a notebook, and a field that editors add.
    """
    notebook = nbformat.read(path, as_version=4)
    for count, cell in enumerate((c for c in notebook.cells if c.cell_type == "code"), start=1):
        cell.execution_count = count
        cell.outputs = [nbformat.v4.new_output("stream", text="41\n")]
    notebook.metadata.language_info.version = "3.11.7"
    nbformat.write(notebook, path)


def test_a_new_folder_holds_the_course_and_nothing_for_its_authors(course, mine):
    """
    A new folder holds the lessons and a README and no authors' files, so that learners find their
    way.
    """
    assert sorted(path.name for path in mine.iterdir() if path.name[0] != ".") == [
        "README.md",
        "notebooks",
    ]
    files = sorted(path.name for path in (mine / "notebooks").iterdir())
    assert files == ["00_toy.ipynb", "01_toy.ipynb", "sources"]
    assert not any(cell.get("outputs") for cell in read_notebook(mine / LESSON).cells)
    assert str(update(mine, course)) == ""


def test_a_notebook_knows_its_python_as_a_kernel_tells_it(mine):
    """
    A notebook's metadata describe Python as a kernel does. JupyterLab adds them otherwise, and then
    asks to save a notebook that was only viewed.
    """
    told = read_notebook(mine / LESSON).metadata.language_info
    assert told == IPythonKernel.language_info
    assert told["version"].startswith("3.")


def test_links_to_the_package_lead_to_its_sources(mine, course):
    """
    Links to the package lead to its sources, which are elsewhere if the course was installed from a
    wheel.
    """
    place = next(place for place in all_notebooks(course) if place.stem == "00_toy")
    text = place.text.read_text()
    place.text.write_text(
        text.replace(
            "It printed 41.",
            "See [a](../ddp_lessons/ring/steps.py), [b](01_toy.ipynb) and [c](../docs/x.md#y).",
        )
    )
    update(mine, course)
    words = "\n".join(cell.source for cell in read_notebook(mine / LESSON).cells)
    assert (
        "See [a](sources/ring/steps.py), [b](01_toy.ipynb) and `docs/x.md` of the course." in words
    )
    assert "def " in (mine / "notebooks/sources/ring/steps.py").read_text()
    assert (mine / "notebooks/sources").is_symlink()


def test_an_edited_lesson_stays_and_its_new_version_lies_beside_it(mine, course):
    """
    An edited lesson stays, and its new version gets a file beside it. The message names that file
    once.
    """
    edit(mine / LESSON)
    before = (mine / LESSON).read_bytes()
    assert str(update(mine, course)) == ""
    new_version(course)
    said = str(update(mine, course))
    assert said == f"{LESSON}: yours is kept, the new one is notebooks/00_toy.new.ipynb"
    assert (mine / LESSON).read_bytes() == before
    assert "x / 1.0" in (mine / "notebooks/00_toy.new.ipynb").read_text()
    assert str(update(mine, course)) == ""


def test_tasks_that_ask_for_something_else_are_named_once(tmp_path):
    """
    When the new version of an edited exercise is put beside it, the tasks in it that have changed
    since the last update are named, because the learner may have solved them. An update from a
    version in which they asked the same names none.
    """
    mine, course = tmp_path / "mine", find_course()
    update(mine, course)
    edit(mine / EXERCISE)
    before = (mine / EXERCISE).read_bytes()
    notes = json.loads((mine / workspace.NOTES).read_text())
    notes["given"][EXERCISE] = "the digest of an earlier version"
    new = "exercises/03_ring.new.ipynb"
    is_kept = f"{EXERCISE}: yours is kept, the new one is {new}"
    named = [
        f"Task {number} asks for something else since 0.2.0: see 03_ring.new.ipynb. Your answer "
        "stays in 03_ring.ipynb."
        for number in ("03.1", "03.2")
    ]
    for version, lines in (("0.1.0", [is_kept, *named]), ("0.2.0", [is_kept])):
        (mine / workspace.NOTES).write_text(json.dumps({**notes, "version": version}))
        assert str(update(mine, course)).splitlines() == lines
        assert str(update(mine, course)) == ""
        (mine / new).unlink()
    assert (mine / EXERCISE).read_bytes() == before


def test_a_second_new_version_gets_a_file_of_its_own(mine, course):
    """
    A second new version gets another file, because the learner may be working in the first one.
    """
    edit(mine / LESSON)
    new_version(course)
    update(mine, course)
    edit(mine / "notebooks/00_toy.new.ipynb")
    before = (mine / "notebooks/00_toy.new.ipynb").read_bytes()
    text = course / "notebooks/py/00_toy.py"
    text.write_text(text.read_text().replace("x / 1.0", "x / 1.00"))
    assert "00_toy.new-2.ipynb" in str(update(mine, course))
    assert (mine / "notebooks/00_toy.new.ipynb").read_bytes() == before


def test_whoever_takes_the_new_version_over_gets_the_next_one_too(mine, course):
    """
    A learner who replaces their lesson by the new version gets later versions automatically,
    because it counts as unedited.
    """
    edit(mine / LESSON)
    new_version(course)
    update(mine, course)
    (mine / "notebooks/00_toy.new.ipynb").rename(mine / LESSON)
    assert str(update(mine, course)) == ""
    text = course / "notebooks/py/00_toy.py"
    text.write_text(text.read_text().replace("x / 1.0", "x / 1.00"))
    assert str(update(mine, course)) == f"brought up to date: {LESSON}"


def test_a_lesson_that_was_only_run_is_brought_up_to_date(mine, course):
    """
    A lesson that was only run is updated. Its outputs cost a minute of computing, and an old
    question costs the learner more.
    """
    run(mine / LESSON)
    ran = (mine / LESSON).read_bytes()
    assert str(update(mine, course)) == ""
    assert (mine / LESSON).read_bytes() == ran
    new_version(course)
    assert str(update(mine, course)) == f"brought up to date: {LESSON}"
    assert "x / 1.0" in (mine / LESSON).read_text()


def test_a_lesson_that_is_new_or_was_deleted_comes(mine, course):
    """
    A lesson that is new or was deleted is copied: a learner who deletes a lesson wants the
    original.
    """
    make_course(course, stem="02_toy")
    (mine / LESSON).unlink()
    assert str(update(mine, course)) == f"new: {LESSON}, notebooks/02_toy.ipynb"


def test_without_its_notes_nothing_of_the_learners_is_overwritten(mine, course):
    """
    Without the hidden notes file, as after a copy of the folder, no learner's file is overwritten.
    """
    edit(mine / LESSON)
    before = (mine / LESSON).read_bytes()
    (mine / workspace.NOTES).unlink()
    new_version(course, "01_toy")
    done = update(mine, course)
    assert set(done.beside) == {LESSON, "notebooks/01_toy.ipynb"}
    assert (mine / LESSON).read_bytes() == before


@pytest.mark.parametrize("text", ["", "{", "null", '{"given": 1}'])
def test_notes_that_cannot_be_read_count_as_none(mine, course, text):
    """
    Notes that cannot be read, as after a full disk, count as none.
    """
    (mine / workspace.NOTES).write_text(text)
    assert str(update(mine, course)) == ""


@pytest.mark.parametrize("text", [b"{", b"\xff\xfe", b"[]"])
def test_a_broken_notebook_is_the_learners_too(mine, course, text):
    """
    A broken notebook is kept too, because it may hold something to recover.
    """
    (mine / LESSON).write_bytes(text)
    new_version(course)
    assert list(update(mine, course).beside) == [LESSON]
    assert (mine / LESSON).read_bytes() == text


def test_the_course_itself_is_no_learners_folder(course):
    """
    The course's own folder is refused: outputs of its notebooks would show up in git.
    """
    with pytest.raises(BadInput, match=r"^Not a folder of your own: "):
        update(course, course)


def test_a_file_is_no_folder(tmp_path, course):
    """
    A path of a file is refused in one sentence.
    """
    (tmp_path / "file").write_text("mine")
    with pytest.raises(BadInput, match=r"^Cannot write there: .*Name another\.$"):
        update(tmp_path / "file", course)
    assert (tmp_path / "file").read_text() == "mine"


def test_a_moved_folder_is_a_learners_folder_still(tmp_path, mine, course):
    """
    A folder that was moved is still a learner's folder.
    """
    shutil.move(mine, tmp_path / "elsewhere")
    assert enclosing(tmp_path / "elsewhere" / "notebooks") == tmp_path / "elsewhere"
    assert enclosing(tmp_path) is None
    assert str(update(tmp_path / "elsewhere", course)) == ""


def test_usual_folder_is_the_one_beside_us(tmp_path, course, monkeypatch):
    """
    The usual folder is the one in the current directory: a hub's terminal opens in the home, where
    `ddp-lessons check 02` must find it.
    """
    monkeypatch.chdir(tmp_path)
    assert workspace.usual_folder() != tmp_path / workspace.NAME
    update(tmp_path / workspace.NAME, course)
    assert workspace.usual_folder() == tmp_path / workspace.NAME
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    assert workspace.usual_folder() != tmp_path / workspace.NAME


def test_exercises_can_come_from_elsewhere(tmp_path, monkeypatch):
    """
    A hub whose learners fetch exercises by nbgrader makes folders without them, so that no learner
    solves a second copy.
    """
    monkeypatch.setenv(workspace.EXERCISES_VARIABLE, "elsewhere")
    update(tmp_path / "mine", find_course())
    assert (tmp_path / "mine" / "notebooks" / "00_ranks.ipynb").exists()
    assert not (tmp_path / "mine" / "exercises").exists()
