"""
Tests of collecting exercises from the homes of real users of this system, and of feedback.
"""

import json
import os
import pwd
import stat
import subprocess
import sys
import sysconfig
import tempfile
import uuid
from pathlib import Path

import pytest
from browser.hub_server import make_environment
from paths import ROOT

from ddp_lessons.course.classroom import collecting, home_files
from ddp_lessons.course.doctor.machine import others_stop_at
from ddp_lessons.course.learner.exercises import find_exercise
from ddp_lessons.errors import BadInput

pytestmark = [
    pytest.mark.timeout(300),
    pytest.mark.skipif(os.geteuid() != 0, reason="only root reads all homes"),
]
LEARNERS = ROOT / "workshop" / "learners.sh"


@pytest.fixture
def users(monkeypatch, tmp_path):
    """
    Make two users for this test, who alone are learners, and return what `pwd` says of them.
    """
    room = f"c{uuid.uuid4().hex[:6]}"
    subprocess.run([LEARNERS, "add", "2", room], check=True, capture_output=True)
    made = [pwd.getpwnam(f"{room}{number}") for number in ("01", "02")]
    monkeypatch.setattr(collecting, "learners", lambda: made)
    # Learners run these two files, so neither may lie in root's home.
    if others_stop_at(sys.executable):
        monkeypatch.setattr(collecting.sys, "executable", "/usr/bin/python3")
    yield made
    subprocess.run([LEARNERS, "remove", "2", room], check=True, capture_output=True)


def exercises_of(user):
    """
    Make and return a learner's folder of exercises.
    """
    folder = Path(user.pw_dir, "my-course", "exercises")
    folder.mkdir(parents=True)
    for path in (folder.parent, folder):
        os.chown(path, user.pw_uid, user.pw_gid)
    return folder


def write(path, text, user):
    """
    Write a file that belongs to a user.
    """
    path.write_text(text)
    os.chown(path, user.pw_uid, user.pw_gid)


def let_others_pass(folder):
    """
    Let learners' processes reach the files in a folder.
    """
    for path in (folder, *folder.parents):
        if not path.stat().st_mode & stat.S_IXOTH:
            path.chmod(path.stat().st_mode | stat.S_IXOTH)


def test_files_are_copied_and_nothing_else(users, tmp_path):
    """
    Notebooks are copied byte for byte with their times; links, pipes, folders and huge files are
    left out and named; each learner has a folder that only its owner can read.
    """
    ada, bo = users
    folder, others = exercises_of(ada), exercises_of(bo)
    write(others / "00_ranks.ipynb", "bo's", bo)
    write(folder / "00_ranks.ipynb", "ada's \xe9", ada)
    os.utime(folder / "00_ranks.ipynb", (1000, 1000))
    write(folder / "notes.txt", "hers alone", ada)
    write(folder / "all.tar.gz", "an archive", ada)
    (folder / "01_link.ipynb").symlink_to(others / "00_ranks.ipynb")
    (folder / "02_shadow.ipynb").symlink_to("/etc/shadow")
    os.mkfifo(folder / "03_pipe.ipynb", 0o666)
    (folder / "04_folder.ipynb").mkdir()
    with (folder / "05_huge.ipynb").open("wb") as file:
        file.truncate(home_files.MOST_BYTES + 1)
    write(folder / "06_mine.ipynb", "not readable", ada)
    (folder / "06_mine.ipynb").chmod(0)
    said = []
    dated, _ = collecting.collect(tmp_path / "in", said.append)
    copied = sorted(path.relative_to(dated).as_posix() for path in dated.rglob("*.*"))
    expected = [f"{user.pw_name}/00_ranks.ipynb" for user in users]
    assert copied == sorted([*expected, f"{ada.pw_name}/all.tar.gz"])
    copy = dated / ada.pw_name / "00_ranks.ipynb"
    assert copy.read_bytes() == (folder / "00_ranks.ipynb").read_bytes()
    assert copy.stat().st_mtime == 1000
    for path in (dated, dated / ada.pw_name):
        assert stat.S_IMODE(path.stat().st_mode) == 0o700
    assert said[0].splitlines() == [
        f"{ada.pw_name}: 2 files",
        "    01_link.ipynb is left out: a link",
        "    02_shadow.ipynb is left out: a link",
        "    03_pipe.ipynb is left out: not a file",
        "    04_folder.ipynb is left out: not a file",
        "    05_huge.ipynb is left out: larger than 16 MiB",
        "    06_mine.ipynb is left out: Permission denied",
    ]
    assert said[1] == f"{bo.pw_name}: 1 files"


def test_a_folder_that_is_a_link_is_not_read(users, tmp_path, monkeypatch):
    """
    If a folder on the way is a link, nothing is read, even if the learner may read the files behind
    it. The command then ends with an error that names the learner.
    """
    ada, bo = users
    theirs = exercises_of(bo)
    write(theirs / "00_ranks.ipynb", "bo's", bo)
    Path(bo.pw_dir).chmod(0o755)
    mine, link = exercises_of(ada), Path(ada.pw_dir, "my-course")
    mine.rmdir()
    mine.symlink_to(theirs)
    for name in ("exercises", "my-course"):
        said = []
        dated, failed = collecting.collect(tmp_path, said.append)
        assert failed == [ada.pw_name]
        assert not list((dated / ada.pw_name).iterdir())
        assert f"{name} is a link, which is not followed" in said[0]
        link.rename(link.with_name(f"before-{name}"))
        link.symlink_to(theirs.parent)
    monkeypatch.setattr(collecting.sys, "argv", ["collect.sh", str(tmp_path)])
    with pytest.raises(SystemExit, match=f"^collect.sh: not all was copied of {ada.pw_name}[.]"):
        collecting.main()


def test_a_learner_who_never_logged_in_has_no_files(users, tmp_path):
    """
    A home without exercises is read in full: somebody who did not come is no fault of the copy.
    """
    said = []
    _, failed = collecting.collect(tmp_path, said.append)
    assert failed == []
    assert said == [f"{user.pw_name}: 0 files" for user in users]


def test_odd_names_do_not_reach_the_terminal(users, tmp_path):
    """
    A name with control characters or bytes that are no text is told with escapes; a file of such a
    name is collected with all others.
    """
    folder = exercises_of(users[0])
    write(folder / "00_ranks.ipynb", "hers", users[0])
    os.symlink("x", os.fsencode(folder) + b"/\xff\x1b[31m.ipynb")
    said = []
    dated, _ = collecting.collect(tmp_path, said.append)
    assert said[0].isascii()
    assert "\x1b" not in said[0]
    assert "a link" in said[0]
    assert (dated / users[0].pw_name / "00_ranks.ipynb").read_text() == "hers"


def test_nothing_collected_is_written_over(users, tmp_path):
    """
    Two collections in the same minute are two folders, and a learner without exercises has one.
    """
    first, _ = collecting.collect(tmp_path, lambda line: None)
    second, _ = collecting.collect(tmp_path, lambda line: None)
    assert first != second
    assert [path.name for path in sorted(second.iterdir())] == [user.pw_name for user in users]


@pytest.mark.parametrize(
    "line",
    [
        "no JSON",
        '{"name": "../../x.ipynb", "content": "", "saved_s": 1}',
        '{"name": "x.ipynb", "content": 5, "saved_s": 1}',
        '["x.ipynb"]',
        "[" * 100_000,
        '{"name": "\\ud800.ipynb", "content": "", "saved_s": 1}',
        '{"name": "\\u0000.ipynb", "content": "", "saved_s": 1}',
        '{"name": "' + "\\u00e9" * 150 + '.ipynb", "content": "", "saved_s": 1}',
        '{"name": "x.ipynb", "content": "", "saved_s": "x"}',
        '{"name": "x.py", "content": "", "saved_s": 1}',
    ],
)
def test_what_a_learner_s_process_says_is_checked(users, tmp_path, monkeypatch, line):
    """
    The process that reads a home belongs to the learner, who can make it say anything.
    """
    forged = tmp_path / "forged.py"
    forged.write_text(f"print({line!r})\n")
    let_others_pass(tmp_path)
    monkeypatch.setattr(home_files, "__file__", str(forged))
    said = []
    dated, _ = collecting.collect(tmp_path / "in", said.append)
    assert all("makes no sense, and is left out" in told for told in said)
    assert not [path for path in dated.rglob("*") if path.is_file() and path.stat().st_size]
    assert not (tmp_path / "x.ipynb").exists()


def test_a_learner_s_process_cannot_reach_the_teacher_s_terminal(users, tmp_path, monkeypatch):
    """
    The process that belongs to the learner has a session of its own, so no terminal, and none of
    root's groups.
    """
    looks = tmp_path / "looks.py"
    looks.write_text(
        "import base64, json, os\n"
        "told = [os.getsid(0) == os.getpid(), os.getuid(), os.getgroups()]\n"
        "content = base64.b64encode(json.dumps(told).encode()).decode()\n"
        "print(json.dumps({'name': 'x.ipynb', 'content': content, 'saved_s': 1}))\n"
    )
    let_others_pass(tmp_path)
    monkeypatch.setattr(home_files, "__file__", str(looks))
    dated, _ = collecting.collect(tmp_path / "in", lambda line: None)
    for user in users:
        told = json.loads((dated / user.pw_name / "x.ipynb").read_text())
        assert told == [True, user.pw_uid, []]


def test_feedback_goes_home_and_over_nothing(users, tmp_path):
    """
    Each page is a new file in its learner's home, owned by the learner; a second one stands beside
    the first, and a folder that links into another home is not written to.
    """
    ada, bo = users
    exercises_of(ada)
    for user in users:
        (tmp_path / f"{user.pw_name}.html").write_text(f"for {user.pw_name}")
    target = Path(ada.pw_dir, "my-course")
    target.chmod(0o777)
    Path(ada.pw_dir).chmod(0o755)
    Path(bo.pw_dir, "my-course").symlink_to(target)
    said = []
    assert collecting.hand_back(tmp_path, said.append) == [bo.pw_name]
    assert collecting.hand_back(tmp_path, said.append) == [bo.pw_name]
    pages = sorted((target / "feedback").iterdir())
    assert len(pages) == 2
    for page in pages:
        assert page.read_text() == f"for {ada.pw_name}"
        assert page.stat().st_uid == ada.pw_uid
    assert "my-course is a link, which is not followed" in said[1]


def test_bad_input_is_told(users, tmp_path, monkeypatch):
    """
    A folder without pages, a system without learners, and a user who is not root are told apart.
    """
    with pytest.raises(BadInput, match=r"^No feedback: expected pages such as learner01.html"):
        collecting.hand_back(tmp_path)
    monkeypatch.undo()
    monkeypatch.setattr(collecting, "GROUP", "no-such-group")
    with pytest.raises(BadInput, match=r"^No learners: a group no-such-group is expected"):
        collecting.collect(tmp_path)
    monkeypatch.setattr(collecting.os, "geteuid", lambda: 1000)
    with pytest.raises(BadInput, match=r"^Only root reads all homes"):
        collecting.collect(tmp_path)


def test_a_teacher_without_root_is_told_whose_home_was_not_read(users):
    """
    A user who checks all homes without being root gets no zero points for a home that only its
    owner can read: the row says so, and the command ends with 1. A path in such a home is refused.
    """
    if place := others_stop_at(sysconfig.get_path("purelib"), ROOT / "ddp_lessons"):
        pytest.skip(f"other users cannot pass {place}")
    ada, bo = users
    write(exercises_of(ada) / "00_ranks.ipynb", find_exercise("00", ROOT).blank.read_text(), ada)
    theirs = exercises_of(bo)
    with tempfile.TemporaryDirectory(prefix="ddp-homes-") as name:
        folder = Path(name)
        folder.chmod(0o755)
        python = make_environment(folder / "environment")
        (folder / "homes").mkdir()
        for user in users:
            (folder / "homes" / user.pw_name).symlink_to(user.pw_dir)

        def check(*words):
            points = f"{ada.pw_dir}/points.csv"
            command = [python, "-m", "ddp_lessons.course.cli", "check", *words, "--points", points]
            done = subprocess.run(
                command, cwd=ada.pw_dir, env={"PATH": os.defpath, "HOME": ada.pw_dir},
                user=ada.pw_uid, group=ada.pw_gid, extra_groups=[], capture_output=True, text=True,
            )  # fmt: skip
            assert done.returncode == 1
            assert "Traceback" not in done.stderr
            return done

        done = check("00", "--folder", folder / "homes")
        assert f"{ada.pw_name}, 00_ranks: not begun" in done.stdout
        assert "which could not be read: Permission denied" in done.stdout
        assert f"Not all was read: {bo.pw_name}. Collect with workshop/collect.sh" in done.stderr
        refused = check(theirs)
        assert f"Not read: a folder or a file that you may read is expected (got {theirs}" in (
            refused.stderr
        )
