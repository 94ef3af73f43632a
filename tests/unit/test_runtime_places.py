"""
The place of the runtime folder: the user's own runtime directory or home first, where no other user
can take its name.
"""

import contextlib
import errno
import functools
import os
import stat
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path

import pytest

from ddp_lessons.errors import StartFailed
from ddp_lessons.ranks.system import runtime_folder
from ddp_lessons.ranks.system.runtime_folder import make_runtime_folder


@dataclass(frozen=True)
class Places:
    """
    The folders that stand for a user's home, which others may read, and for /tmp.
    """

    home: Path
    temporary: Path


@pytest.fixture
def places(tmp_path, monkeypatch):
    """
    Return Places, and make all other places unusable.
    """
    places = Places(tmp_path / "people" / "me", tmp_path / "temporary")
    places.temporary.mkdir()
    places.home.mkdir(parents=True)
    places.home.chmod(0o755)
    for name in ("DDP_LESSONS_RUNTIME_DIR", "XDG_RUNTIME_DIR", "XDG_STATE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(places.home))
    monkeypatch.setattr(tempfile, "tempdir", str(places.temporary))
    return places


def mode(path):
    """
    Return a path's permissions, such as 0o700.
    """
    return stat.S_IMODE(os.stat(path).st_mode)


def test_runtime_folder_is_in_the_user_s_own_if_there_is_one(places, tmp_path, monkeypatch):
    """
    The runtime folder is in XDG_RUNTIME_DIR if the user has one: Linux makes it at login, and
    nobody else can write there.
    """
    own = tmp_path / "run"
    own.mkdir(mode=0o700)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(own))
    folder = make_runtime_folder()
    assert folder.parent == own / "ddp-lessons"
    assert mode(folder) == mode(folder.parent) == 0o700


@pytest.mark.parametrize("fault", ["open", "missing", "somebody else's"])
def test_runtime_folder_is_in_the_home_otherwise(places, monkeypatch, fault):
    """
    Without a usable XDG_RUNTIME_DIR the folder is in the home: a hub or container sets none, and
    after `su` it is another user's.
    """
    given = places.temporary / "run"
    if fault != "missing":
        given.mkdir(mode=0o700)
        given.chmod(0o777 if fault == "open" else 0o700)
    if fault == "somebody else's":
        if os.getuid() != 0:
            pytest.skip("only root can give a folder away")
        os.chown(given, 65534, 65534)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(given))
    folder = make_runtime_folder()
    assert folder.parent == places.home / ".local" / "state" / "ddp-lessons" / "runtime"
    assert mode(folder) == mode(folder.parent) == 0o700
    assert mode(places.home) == 0o755


@pytest.mark.parametrize("fault", ["a file is in the way", "full", "none"])
def test_runtime_folder_is_temporary_if_the_home_cannot_be_used(places, monkeypatch, fault):
    """
    If the home cannot be used, the folder is among the temporary files: homes are full on some
    servers and missing in some containers.
    """
    real, refused = tempfile.mkdtemp, []

    def make(prefix, dir):
        if fault == "full" and dir.is_relative_to(places.home):
            refused.append(dir)
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return real(prefix=prefix, dir=dir)

    monkeypatch.setattr(tempfile, "mkdtemp", make)
    if fault == "a file is in the way":
        (places.home / ".local").touch()
    elif fault == "none":
        monkeypatch.setenv("HOME", "nowhere")
    assert make_runtime_folder().parent == places.temporary / f"ddp-lessons-{os.getuid()}"
    assert len(refused) == (fault == "full")
    assert list(places.home.rglob("ranks-*")) == []


def test_runtime_folder_is_temporary_if_the_home_is_read_only(places):
    """
    If the home is read-only, as in many containers, the folder is among the temporary files.
    """
    options = ["-t", "tmpfs", "-o", "ro,size=64k", "tmpfs", places.home]
    mount = subprocess.run(["mount", *options], capture_output=True, text=True)
    if mount.returncode != 0:
        pytest.skip(f"a file system cannot be mounted here: {mount.stderr.strip()}")
    try:
        assert make_runtime_folder().parent == places.temporary / f"ddp-lessons-{os.getuid()}"
    finally:
        subprocess.run(["umount", places.home], check=True)


def test_runtime_folder_is_not_left_in_somebody_else_s_home(places, monkeypatch):
    """
    No folder is made in another user's home. Under sudo, HOME may be a learner's, and a folder of
    root's there would keep the learner's progress from being stored.
    """
    monkeypatch.setattr(os, "getuid", lambda: 1)
    with contextlib.suppress(StartFailed):  # this process's temporary folder is not that user's
        make_runtime_folder()
    assert list(places.home.rglob("*")) == []


def test_runtime_folder_on_a_network_comes_last(places, monkeypatch):
    """
    A network file system is used last, because ranks of one machine meet in a file, which is slow
    there or fails.
    """
    mounts = places.temporary.parent / "mounts"
    mounts.write_text(
        f"/dev/a / ext4 rw 0 0\nserver:/people {places.home.parent} nfs4 rw,vers=4 0 0\n"
    )
    kind = functools.partial(runtime_folder._file_system, mounts=mounts)
    assert [kind(places.home / "new" / "folder"), kind(places.temporary)] == [
        "nfs4",
        "ext4",
    ]
    monkeypatch.setattr(runtime_folder, "_file_system", kind)
    folder = make_runtime_folder()
    assert folder.parent.parent == places.temporary


def test_runtime_folder_without_locks_is_refused(places, monkeypatch):
    """
    A file system without locks, as on some clusters, is not used, because ranks would not find each
    other.
    """

    def flock(file, operation):
        if file.name.startswith(str(places.home)):
            raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))

    monkeypatch.setattr(runtime_folder.fcntl, "flock", flock)
    assert make_runtime_folder().parent.parent == places.temporary
    assert list(places.home.rglob("ranks-*")) == []
