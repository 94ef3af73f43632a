"""
The runtime folder: private to its user, and a clear error where it cannot be made.
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
    Return a path's permissions, such as 0o700.
    """
    return stat.S_IMODE(os.stat(path).st_mode)


@pytest.fixture
def temporary(tmp_path, monkeypatch):
    """
    Return a folder that stands for /tmp, and make all better places unusable: a file is where the
    home would be.
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
    Run a test under several umasks, because privacy must not depend on the user's.
    """
    before = os.umask(request.param)
    yield request.param
    os.umask(before)


@pytest.fixture
def chosen(tmp_path, monkeypatch):
    """
    Return the folder that DDP_LESSONS_RUNTIME_DIR names.
    """
    folder = tmp_path / "chosen"
    monkeypatch.setenv("DDP_LESSONS_RUNTIME_DIR", str(folder))
    return folder


@contextlib.contextmanager
def as_a_user_who_may_not_write(folder):
    """
    Take the right to write in a folder from this process. Root would have it whatever the folder's
    mode.
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
    The runtime folder and its files are private, because anybody who reads the connection files can
    run code as this user.
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
    Each call makes a new folder, so that two notebooks of one user do not share one.
    """
    folders = {make_runtime_folder() for _ in range(20)}
    assert len(folders) == 20
    for folder in folders:
        remove_runtime_folder(folder)
        remove_runtime_folder(folder)
    assert list((temporary / f"ddp-lessons-{os.getuid()}").iterdir()) == []


def test_runtime_folder_is_closed_to_others_if_it_was_open(temporary):
    """
    A parent folder that is open to others is made private before it is used.
    """
    parent = temporary / f"ddp-lessons-{os.getuid()}"
    parent.mkdir()
    parent.chmod(0o777)
    make_runtime_folder()
    assert mode(parent) == 0o700


def test_runtime_folder_can_be_chosen(chosen):
    """
    The folder can be chosen, as on a server with a small /tmp. The chosen folder keeps its
    permissions, and ours inside is private.
    """
    folder = make_runtime_folder()
    assert folder.parent == chosen
    assert mode(folder) == 0o700
    chosen.chmod(0o755)
    make_runtime_folder()
    assert mode(chosen) == 0o755


def test_runtime_folder_of_somebody_else_is_refused(temporary, monkeypatch):
    """
    A folder of another user is refused: its name is easy to guess, so another user may have made it
    first.
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
    A symbolic link is refused, because another user's link could choose which of this user's files
    are overwritten.
    """
    target = tmp_path_factory.mktemp("target")
    (temporary / f"ddp-lessons-{os.getuid()}").symlink_to(target)
    with pytest.raises(StartFailed, match="belongs to somebody else"):
        make_runtime_folder()
    assert list(target.iterdir()) == []


def test_runtime_folder_that_cannot_be_written(chosen):
    """
    Where the folder cannot be written, as on a read-only disk, the message names it and the way
    out.
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
    A file with the folder's name, as after a mistyped variable, is refused and not changed.
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
    A full disk is found before anything starts, not when a rank writes its log, and no file is
    left.
    """
    with pytest.raises(StartFailed, match=r"got .*: No space left on device\)\. Free some space"):
        make_runtime_folder()
    assert list(small_disk.iterdir()) == []


def test_runtime_folder_beyond_a_limit(chosen):
    """
    A limit on the size of files is reported like a full disk. This test needs no file system of its
    own.
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
    A log is appended to, so that a replacement rank's log keeps the reason for the old rank's
    death.
    """
    path = Path(tmp_path) / "rank-1.log"
    for text in (b"first\n", b"second\n"):
        with os.fdopen(open_private(path), "wb") as log:
            log.write(text)
    assert re.findall(r"\w+", path.read_text()) == ["first", "second"]
