"""
The runtime folder: for this user only, and a clear sentence where there can be none.
"""

import contextlib
import os
import re
import resource
import stat
import subprocess
import tempfile
from pathlib import Path

import pytest

from ddp_lessons.errors import StartFailed
from ddp_lessons.ranks.system.runtime_folder import (
    make_runtime_folder,
    open_private,
    remove_runtime_folder,
)


def mode(path):
    """
    Return a path's permissions, as in 0o700.
    """
    return stat.S_IMODE(os.stat(path).st_mode)


@pytest.fixture
def temporary(tmp_path, monkeypatch):
    """
    Make a folder stand for /tmp, where there is no better place: a file is where a home would be.
    """
    monkeypatch.delenv("DDP_LESSONS_RUNTIME_DIR", raising=False)
    monkeypatch.delenv("XDG_RUNTIME_DIR", raising=False)
    (tmp_path / "home").touch()
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "home"))
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(temporary))
    return temporary


@pytest.fixture(params=[0o000, 0o022, 0o077])
def umask(request):
    """
    Run a test under several umasks: privacy must not hang on the user's.
    """
    before = os.umask(request.param)
    yield request.param
    os.umask(before)


@pytest.fixture
def chosen(tmp_path, monkeypatch):
    """
    Give a folder that DDP_LESSONS_RUNTIME_DIR names.
    """
    folder = tmp_path / "chosen"
    monkeypatch.setenv("DDP_LESSONS_RUNTIME_DIR", str(folder))
    return folder


@contextlib.contextmanager
def as_a_user_who_may_not_write(folder):
    """
    Take the right to write in a folder from this process; root has it whatever the mode.
    """
    folder.mkdir(mode=0o500, exist_ok=True)
    euid = os.geteuid()
    if euid == 0:
        os.seteuid(65534)
    try:
        yield
    finally:
        os.seteuid(euid)
        folder.chmod(0o700)


def test_runtime_folder_is_private(temporary, umask):
    """
    Whoever can read the connection files can run code as this user.
    """
    folder = make_runtime_folder()
    assert folder.parent == temporary / f"ddp-lessons-{os.getuid()}"
    assert mode(folder) == 0o700
    assert mode(folder.parent) == 0o700
    assert list(folder.iterdir()) == []
    os.close(open_private(folder / "rank-0.log"))
    assert mode(folder / "rank-0.log") == 0o600


def test_runtime_folder_is_new_each_time(temporary):
    """
    Two notebooks of one user must not meet in one folder.
    """
    folders = {make_runtime_folder() for _ in range(20)}
    assert len(folders) == 20
    for folder in folders:
        remove_runtime_folder(folder)
        remove_runtime_folder(folder)
    assert list((temporary / f"ddp-lessons-{os.getuid()}").iterdir()) == []


def test_runtime_folder_is_closed_to_others_if_it_was_open(temporary):
    """
    A folder that an earlier umask left open to others is made private before it is used.
    """
    parent = temporary / f"ddp-lessons-{os.getuid()}"
    parent.mkdir()
    parent.chmod(0o777)
    make_runtime_folder()
    assert mode(parent) == 0o700


def test_runtime_folder_can_be_chosen(chosen):
    """
    On a server with a small /tmp. The chosen folder keeps its permissions; ours within is private.
    """
    folder = make_runtime_folder()
    assert folder.parent == chosen
    assert mode(folder) == 0o700
    chosen.chmod(0o755)
    make_runtime_folder()
    assert mode(chosen) == 0o755


def test_runtime_folder_of_somebody_else_is_refused(temporary, monkeypatch):
    """
    The name is easy to guess: another user of the server may have made it first.
    """
    uid = os.getuid() + 1
    folder = temporary / f"ddp-lessons-{uid}"
    folder.mkdir()
    monkeypatch.setattr(os, "getuid", lambda: uid)
    with pytest.raises(StartFailed) as caught:
        make_runtime_folder()
    assert str(caught.value) == (
        "The runtime folder belongs to somebody else: it must be a folder of yours "
        f"(got {folder}). Set DDP_LESSONS_RUNTIME_DIR to a private folder."
    )


def test_runtime_folder_behind_a_link_is_refused(temporary, tmp_path_factory):
    """
    A link of somebody else's into a folder of ours would let them choose what we overwrite.
    """
    target = tmp_path_factory.mktemp("target")
    (temporary / f"ddp-lessons-{os.getuid()}").symlink_to(target)
    with pytest.raises(StartFailed, match="belongs to somebody else"):
        make_runtime_folder()
    assert list(target.iterdir()) == []


def test_runtime_folder_that_cannot_be_written(chosen):
    """
    A read-only disk, or a folder that an administrator has made: say which, and the way out.
    """
    with as_a_user_who_may_not_write(chosen), pytest.raises(StartFailed) as caught:
        make_runtime_folder()
    assert str(caught.value) == (
        "The runtime folder cannot be written: ranks need about 1 MiB there "
        f"(got {chosen}: Permission denied). Free some space, or set DDP_LESSONS_RUNTIME_DIR to "
        "a folder that you can write."
    )


@pytest.mark.parametrize("within", ["", "/runtime"])
def test_runtime_folder_where_a_file_is(chosen, within, monkeypatch):
    """
    A mistyped variable names a file; it must not be touched.
    """
    chosen.write_text("mine")
    monkeypatch.setenv("DDP_LESSONS_RUNTIME_DIR", f"{chosen}{within}")
    with pytest.raises(StartFailed, match=r"cannot be written: .*(File exists|Not a directory)"):
        make_runtime_folder()
    assert chosen.read_text() == "mine"


@pytest.fixture
def small_disk(chosen):
    """
    Give a file system of 256 KiB at the chosen folder.
    """
    chosen.mkdir()
    mount = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=256k", "tmpfs", chosen], capture_output=True, text=True
    )
    if mount.returncode != 0:
        pytest.skip(f"a file system cannot be mounted here: {mount.stderr.strip()}")
    yield chosen
    subprocess.run(["umount", chosen], check=True)


def test_runtime_folder_on_a_full_disk(small_disk):
    """
    Found before anything is started, not when a rank's log cannot be written; nothing is left.
    """
    with pytest.raises(StartFailed, match=r"got .*: No space left on device\)\. Free some space"):
        make_runtime_folder()
    assert list(small_disk.iterdir()) == []


def test_runtime_folder_beyond_a_limit(chosen):
    """
    A limit on the size of files fails as a full disk does. This needs no file system of its own.
    """
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 19, before[1]))
    try:
        with pytest.raises(StartFailed, match=r"got .*: File too large\)\. Free some space"):
            make_runtime_folder()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert list(chosen.iterdir()) == []


def test_open_private_appends(tmp_path):
    """
    A rank that takes a dead one's place goes on in its log, so that the reason of death stays.
    """
    path = Path(tmp_path) / "rank-1.log"
    for text in (b"first\n", b"second\n"):
        with os.fdopen(open_private(path), "wb") as log:
            log.write(text)
    assert re.findall(r"\w+", path.read_text()) == ["first", "second"]
