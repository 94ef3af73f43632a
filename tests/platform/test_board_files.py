"""
Tests of the board's rows from a folder of state files: their names, and other things in the folder.
"""

import json
import os
import pwd

import pytest
from class_board import state_of, tried

from ddp_lessons.course.classroom.board.state_files import Files
from ddp_lessons.errors import BadInput

STATE = json.dumps(state_of({"00.1": tried("view")}))


def names(folder):
    """
    Return the names of the rows of a folder.
    """
    return sorted(row.name for row in Files(folder).rows())


def test_a_file_a_learner_wherever_it_lies(tmp_path):
    """
    Each file is one learner's row, named after the file, or after its folder.
    """
    (tmp_path / "ada.json").write_text(STATE)
    for place in ("bo", "cy/.local/state/ddp-lessons"):
        (tmp_path / place).mkdir(parents=True)
        (tmp_path / place / "progress.json").write_text(STATE)
    assert names(tmp_path) == ["ada", "bo", "cy"]
    assert Files(tmp_path).rows()[0].state["tasks"]["00.1"]["checks"] == 1


def test_a_file_is_read_again_when_it_has_changed(tmp_path):
    """
    A file is read again only when it has changed, because the board reads the folder every two
    seconds.
    """
    path = tmp_path / "ada.json"
    path.write_text(STATE)
    files = Files(tmp_path)
    first = files.rows()[0]
    assert files.rows()[0] is first
    path.write_text(json.dumps(state_of({"00.1": tried("view", None)})))
    assert files.rows()[0].state["tasks"]["00.1"]["is_passed"]
    path.unlink()
    assert files.rows() == []


@pytest.mark.timeout(20)
def test_what_is_no_state_file_is_passed_by(tmp_path):
    """
    Anything in the folder that is no state file is skipped: a pipe would block, a link would be
    followed, and a large file would fill the memory.
    """
    (tmp_path / "note.json").write_text('"hello"')
    (tmp_path / "cut.json").write_text("{")
    (tmp_path / "picture.json").write_bytes(b"\xff\xfe\x00")
    (tmp_path / "large.json").write_text(" " * 300_000 + STATE)
    (tmp_path / "folder.json").mkdir()
    os.mkfifo(tmp_path / "pipe.json")
    (tmp_path / "elsewhere").write_text(STATE)
    (tmp_path / "link.json").symlink_to(tmp_path / "elsewhere")
    (tmp_path / "ada.json").write_text(STATE)
    assert names(tmp_path) == ["ada"]


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to give files to others")
def test_a_row_is_the_owners_whatever_the_file_is_called(tmp_path):
    """
    A row is named after the file's owner, and each owner has one row: a learner cannot write a row
    of another.
    """
    nobody = pwd.getpwnam("nobody")
    daemon = pwd.getpwnam("daemon")
    for name, owner, told in (
        ("daemon", nobody, state_of({"00.1": tried(None)})),
        ("other", nobody, state_of()),
        ("mine", daemon, state_of({"00.1": tried("view")})),
    ):
        path = tmp_path / f"{name}.json"
        path.write_text(json.dumps(told))
        os.chown(path, owner.pw_uid, owner.pw_gid)
    os.utime(tmp_path / "other.json", (1, 1))
    rows = {row.name: row.state["tasks"] for row in Files(tmp_path).rows()}
    assert set(rows) == {"nobody", "daemon"}
    assert not rows["daemon"]["00.1"]["is_passed"]
    assert rows["nobody"]["00.1"]["is_passed"]


def test_a_folder_that_is_not_there_is_told(tmp_path):
    """
    A folder that does not exist raises BadInput, because its name was probably mistyped.
    """
    with pytest.raises(BadInput, match=r"^No such folder: expected .* \(got "):
        Files(tmp_path / "nowhere")
