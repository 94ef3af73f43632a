"""
Tests of the submissions that are found in a folder: nothing that was handed in vanishes.
"""

import errno
import os
import shutil

import pytest
from paths import ROOT

from ddp_lessons.course.classroom import handed_in, learner_files
from ddp_lessons.course.learner.exercises import find_exercise
from ddp_lessons.errors import BadInput

NAME = "00_ranks.ipynb"


def hand_in(folder, name=NAME, text="{}", saved_s=1000):
    """
    Write a file into a learner's folder, and return its path.
    """
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    os.utime(path, (saved_s, saved_s))
    return path


def found_in(folder, stem=None, roster=()):
    """
    Return {(learner, exercise): path relative to the folder, or the mistake's name}.
    """
    return {
        (one.learner, one.paths.stem): one.mistake or one.path.relative_to(folder).as_posix()
        for one in handed_in.find(folder, stem, roster)
    }


@pytest.fixture
def forbid(monkeypatch):
    """
    Return a function after which a folder or a file may not be read: root may read everything.
    """
    forbidden = set()

    def refuse_in(name):
        real = getattr(os, name)

        def call(path=".", *args, **options):
            if str(path) in forbidden:
                raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))
            return real(path, *args, **options)

        monkeypatch.setattr(os, name, call)

    for name in ("scandir", "listdir"):
        refuse_in(name)
    real_access = os.access
    monkeypatch.setattr(
        os, "access", lambda path, mode: str(path) not in forbidden and real_access(path, mode)
    )
    return lambda path: forbidden.add(str(path))


def test_every_folder_of_a_class_has_a_row(tmp_path):
    """
    Each learner's exercise is found wherever it lies, and a learner without one has a row, too.
    """
    hand_in(tmp_path / "ada")
    hand_in(tmp_path / "bo" / "my-course" / "exercises")
    hand_in(tmp_path / "bo" / "my-course" / "exercises" / ".ipynb_checkpoints", saved_s=2000)
    hand_in(tmp_path / "bo" / "my-course" / "exercises" / "solutions", saved_s=2000)
    hand_in(tmp_path / "bo" / "my-course" / "notebooks", saved_s=2000)
    (tmp_path / "di").mkdir()
    expected = {
        ("ada", "00_ranks"): "ada/00_ranks.ipynb",
        ("bo", "00_ranks"): "bo/my-course/exercises/00_ranks.ipynb",
        ("di", "00_ranks"): "blank",
    }
    assert found_in(tmp_path) == expected
    assert found_in(tmp_path, "0") == expected
    assert set(found_in(tmp_path, "02").values()) == {"blank"}


def test_without_an_exercise_each_that_anybody_has_handed_in_has_a_row(tmp_path):
    """
    Every learner has a row for each exercise that anybody has handed in.
    """
    hand_in(tmp_path / "ada")
    hand_in(tmp_path / "bo", "02_collectives.ipynb")
    assert found_in(tmp_path) == {
        ("ada", "00_ranks"): "ada/00_ranks.ipynb",
        ("ada", "02_collectives"): "blank",
        ("bo", "00_ranks"): "blank",
        ("bo", "02_collectives"): "bo/02_collectives.ipynb",
    }


def test_a_roster_says_who_handed_in_nothing(tmp_path):
    """
    A learner of the roster without a folder has a row; one without a line in it keeps the row.
    """
    hand_in(tmp_path / "ada")
    assert found_in(tmp_path, "00", ["zoe"]) == {
        ("ada", "00_ranks"): "ada/00_ranks.ipynb",
        ("zoe", "00_ranks"): "blank",
    }


@pytest.mark.parametrize(
    "name",
    ["00_ranks (1).ipynb", "00_ranks-Copy1.ipynb", "00_ranks_2.ipynb", "00_RANKS copy.IPYNB"],
)
def test_of_two_copies_the_newest_counts(tmp_path, name):
    """
    A second download or a copy counts if it is newer than the first, and the row says which.
    """
    hand_in(tmp_path / "ada")
    hand_in(tmp_path / "ada", name, saved_s=2000)
    (one,) = handed_in.find(tmp_path, "00")
    assert one.path.name == name
    assert one.note == f"{name} counts, because it is the newest one, and not: 00_ranks.ipynb"
    hand_in(tmp_path / "ada", saved_s=3000)
    (one,) = handed_in.find(tmp_path, "00")
    assert one.path.name == NAME


@pytest.mark.parametrize(
    "name", ["00_ranks.kept-1.ipynb", "00_ranks.new.ipynb", "my_00_ranks.ipynb"]
)
def test_what_is_no_answer_is_not_taken_for_one(tmp_path, name):
    """
    An answer that `reset` has put aside, a new version of the course, and another name do not
    count, and the row names what is there.
    """
    hand_in(tmp_path / "ada", name)
    hand_in(tmp_path / "bo")
    one = handed_in.find(tmp_path, "00")[0]
    assert one.path is None
    assert one.fault.startswith(f"Nothing was handed in: 00_ranks.ipynb is expected (got {name})")


def test_an_archive_is_told(tmp_path):
    """
    The row of an archive says that it must be unpacked.
    """
    hand_in(tmp_path / "ada", "exercise.zip")
    hand_in(tmp_path / "bo")
    one = handed_in.find(tmp_path, "00")[0]
    assert "(got exercise.zip). Unpack the archive" in one.fault


def test_a_link_is_not_followed(tmp_path):
    """
    A link to another learner's notebook is not read, and neither is a folder behind a link.
    """
    path = hand_in(tmp_path / "ada")
    (tmp_path / "bo").mkdir()
    (tmp_path / "bo" / NAME).symlink_to(path)
    (tmp_path / "cy").mkdir()
    (tmp_path / "cy" / "exercises").symlink_to(tmp_path / "ada")
    ada, bo, cy = handed_in.find(tmp_path, "00")
    assert ada.path == path
    assert (bo.path, bo.mistake) == (None, "unreadable")
    assert "a link" in bo.fault
    assert (cy.path, cy.mistake) == (None, "blank")


def test_a_huge_file_is_not_read(tmp_path):
    """
    A file that is larger than any notebook of the course is refused with both sizes.
    """
    with hand_in(tmp_path / "ada").open("wb") as file:
        file.truncate(learner_files.MOST_BYTES + 1)
    hand_in(tmp_path / "bo")
    assert "16 MiB are expected (got 16.0 MiB)" in handed_in.find(tmp_path, "00")[0].fault


def test_a_folder_of_one_learner(tmp_path):
    """
    A folder of one learner, as a CI job checks it out, is found with the whole course or with the
    exercises only.
    """
    hand_in(tmp_path / "one")
    hand_in(tmp_path / "two" / "exercises")
    (tmp_path / "two" / "notebooks").mkdir()
    shutil.copy(ROOT / "notebooks" / NAME, tmp_path / "two" / "notebooks")
    assert found_in(tmp_path / "one") == {("one", "00_ranks"): NAME}
    assert found_in(tmp_path / "two", "00") == {("two", "00_ranks"): f"exercises/{NAME}"}


def test_a_folder_with_nothing_in_it_is_told(tmp_path):
    """
    A folder without any notebook of the course raises BadInput, because its name was probably
    mistyped; so does one learner's folder without the named exercise.
    """
    with pytest.raises(BadInput, match=r"^Nothing was handed in: expected .* \(got "):
        handed_in.find(tmp_path)
    hand_in(tmp_path)
    with pytest.raises(BadInput, match="Nothing was handed in: expected notebooks such as 02_"):
        handed_in.find(tmp_path, "02")


def test_a_folder_that_may_not_be_read_is_not_taken_for_an_empty_one(tmp_path, forbid):
    """
    Without root, homes of mode 0700 cannot be read: their rows say so, with the way that reads
    them, in place of "Nothing was handed in" and 0 points. So does the row of a file.
    """
    hand_in(tmp_path / "ada")
    forbid(hand_in(tmp_path / "bo" / "exercises").parent)
    hand_in(tmp_path / "cy")
    (tmp_path / "cy" / "private").mkdir()
    forbid(tmp_path / "cy" / "private")
    forbid(hand_in(tmp_path / "di"))
    for stem in ("00", None):
        ada, bo, cy, di = handed_in.find(tmp_path, stem)
        assert (ada.mistake, ada.is_unread) == ("", False)
        for one in (bo, di):
            assert (one.path, one.mistake, one.is_unread) == (None, "unreadable", True)
            assert "which could not be read: Permission denied" in one.fault
            assert one.fault.endswith("Collect with workshop/collect.sh, or run this with sudo.")
        assert cy.path is not None
        assert cy.is_unread
        assert f"(got {tmp_path / 'cy' / 'private'}, which could not be read: " in cy.note


def test_where_nothing_may_be_read_nothing_is_checked(tmp_path, forbid):
    """
    A folder that may not be read, or one in which no learner's folder may be read, raises BadInput.
    """
    hand_in(tmp_path / "ada")
    forbid(tmp_path / "ada")
    with pytest.raises(BadInput, match=rf"^Not read: .*got {tmp_path}/ada, .* Permission denied"):
        handed_in.find(tmp_path)
    forbid(tmp_path)
    with pytest.raises(BadInput, match=rf"^Not read: .*got {tmp_path}, .* workshop/collect[.]sh"):
        handed_in.find(tmp_path, "00")


def test_a_path_that_may_not_be_looked_at_is_taken_for_a_folder(tmp_path, monkeypatch):
    """
    A path below a private home may be a folder or not: the error of reading it says which home.
    """

    def refuse(path):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), path)

    assert not learner_files.is_folder("00_ranks")
    assert learner_files.is_folder(tmp_path)
    monkeypatch.setattr(os, "stat", refuse)
    assert learner_files.is_folder("/home/bo/exercises")


@pytest.mark.parametrize(("where", "named"), [(".", "00_ranks.ipynb"), ("exercises", "exercises/")])
def test_a_stray_exercise_does_not_hide_the_class(tmp_path, where, named):
    """
    An exercise beside the learners' folders, or a folder of exercises there, does not turn the
    class into one learner. A line names it.
    """
    for learner in ("ada", "bo"):
        hand_in(tmp_path / learner)
    hand_in(tmp_path / where)
    said = []
    found = handed_in.find(tmp_path, "00", say=said.append)
    assert [one.learner for one in found] == ["ada", "bo"]
    (line,) = said
    assert line.startswith(f"Left out: {named} at the top of {tmp_path}, ")


def test_a_stray_exercise_does_not_hide_folders_that_may_not_be_read(tmp_path, forbid):
    """
    Folders that may not be read can be those of a class.
    """
    hand_in(tmp_path)
    (tmp_path / "ada").mkdir()
    forbid(tmp_path / "ada")
    assert [one.mistake for one in handed_in.find(tmp_path, "00")] == ["unreadable"]


def test_a_copy_of_the_course_is_one_learner_s(tmp_path):
    """
    A copy of the course in which a learner has made a second one is still one learner's, and a line
    names the second one.
    """
    hand_in(tmp_path / "exercises")
    hand_in(tmp_path / "notebooks")
    hand_in(tmp_path / "my-course" / "exercises")
    said = []
    (one,) = handed_in.find(tmp_path, say=said.append)
    assert (one.learner, one.path) == (tmp_path.name, tmp_path / "exercises" / NAME)
    assert said == ["Left out: my-course, with exercises, too. To check one, name its path."]


def test_with_an_exercise_named_each_folder_has_a_row_in_any_case(tmp_path):
    """
    If no learner has a notebook of the right name, as after an export of archives, each row says
    what is there. The same holds for a roster without any folder.
    """
    hand_in(tmp_path / "ada", "exercise.zip")
    hand_in(tmp_path / "bo", "my_00_ranks.ipynb")
    ada, bo = handed_in.find(tmp_path, "00")
    assert "(got exercise.zip). Unpack the archive" in ada.fault
    assert "(got my_00_ranks.ipynb). Ask for the notebook." in bo.fault
    with pytest.raises(BadInput, match="name an exercise: then each folder in it has a row"):
        handed_in.find(tmp_path)
    (tmp_path / "empty").mkdir()
    assert found_in(tmp_path / "empty", "00", ["zoe"]) == {("zoe", "00_ranks"): "blank"}


def test_an_exercise_that_no_learner_has_begun_has_no_row(tmp_path):
    """
    A learner of a hub has all exercises, and a day is enough for three: the others have no rows,
    and a line counts them. Without any answer in the class, an exercise must be named.
    """
    for learner in ("ada", "bo"):
        for number in ("00", "02", "03"):
            path = find_exercise(number, ROOT).blank
            hand_in(tmp_path / learner, path.name, path.read_text())
    with pytest.raises(BadInput, match=r"^Nothing was begun: .*got 3 exercises .* Name an exer"):
        handed_in.find(tmp_path)
    assert len(handed_in.find(tmp_path, "00")) == 2
    path = tmp_path / "bo" / "02_collectives.ipynb"
    path.write_text(path.read_text().replace("is still blank", "is not blank"))
    said = []
    found = handed_in.find(tmp_path, say=said.append)
    assert [(one.learner, one.paths.stem) for one in found] == [
        ("ada", "02_collectives"),
        ("bo", "02_collectives"),
    ]
    assert said == ["Exercises without a row, because no learner has begun them: 2."]
    hand_in(tmp_path / "ada", "03_ring.ipynb", "cut off")
    assert {one.paths.stem for one in handed_in.find(tmp_path)} == {"02_collectives", "03_ring"}


def test_a_roster_is_read(tmp_path):
    """
    A roster has one name a line; a list of names and passwords is one, too.
    """
    path = tmp_path / "roster"
    path.write_text("learner01 secret\n\nlearner02,Ada\nlearner01\n")
    assert handed_in.read_roster(path) == ["learner01", "learner02"]


@pytest.mark.parametrize("text", ["", "\n \n", "../ada\n", ".ada\n"])
def test_a_roster_without_names_is_refused(tmp_path, text):
    """
    A roster without names, or with one that no folder can have, raises BadInput.
    """
    path = tmp_path / "roster"
    path.write_text(text)
    with pytest.raises(BadInput, match="No roster: expected one name a line"):
        handed_in.read_roster(path)
    with pytest.raises(BadInput, match="No roster: expected a text file"):
        handed_in.read_roster(tmp_path / "none")
