"""
The watch of the checks of exercise 08, which records each state of a file while it is saved.
"""

import os

import pytest
import torch

from ddp_lessons.checkpoint.atomic import write_state
from ddp_lessons.checks.kit.on_rank.file_watch import LEFT, FileWatch, left_by_kills, open_below


def contents_while(path, write):
    """
    Return the contents that the watch saw while a function ran, and the watch.
    """
    with FileWatch(path) as watch:
        write()
    return [content for _, content in watch.versions], watch


def test_a_save_in_place_is_seen_half_done(tmp_path):
    """
    A save in place shows the file half written. Opening a file empties it, and the watch must see
    that even if the save is quick.
    """
    path = tmp_path / "run.pt"
    path.write_bytes(b"old")
    seen, watch = contents_while(path, lambda: torch.save(torch.ones(1000), path))
    assert seen[0] == b"old"
    assert seen[-1] == path.read_bytes()
    assert b"" in seen[1:-1]
    assert watch.num_saves == 1


def test_an_atomic_save_is_seen_as_old_or_new(tmp_path):
    """
    An atomic save shows only the old and the new file, so the course's own save passes.
    """
    path = tmp_path / "run.pt"
    write_state({"weights": torch.zeros(1000)}, path)
    old = path.read_bytes()
    seen, watch = contents_while(path, lambda: write_state({"weights": torch.ones(1000)}, path))
    assert seen == [old, path.read_bytes()]
    assert watch.synced
    assert watch.was_beside


def test_a_file_that_is_gone_for_a_moment_is_seen(tmp_path):
    """
    A file that is missing for a moment between remove and rename is seen as missing.
    """
    path, other = tmp_path / "run.pt", tmp_path / "new"
    path.write_bytes(b"old")
    other.write_bytes(b"new")

    def remove_and_rename():
        path.unlink()
        os.rename(other, path)

    seen, watch = contents_while(path, remove_and_rename)
    assert seen == [b"old", None, b"new"]
    assert not watch.synced


def test_a_sync_before_the_write_is_none(tmp_path):
    """
    A sync before the write does not count: the bytes on the disk at the time of the rename matter.
    """
    path, other = tmp_path / "run.pt", tmp_path / "new"

    def sync_too_early():
        with open(other, "wb") as file:
            os.fsync(file.fileno())
            file.write(b"new")
        os.replace(other, path)

    _, watch = contents_while(path, sync_too_early)
    assert watch.was_beside
    assert not watch.synced


def test_a_sync_is_that_of_one_file(tmp_path):
    """
    A sync counts for its own file only, not for a folder or another file.
    """
    path, other, third = (tmp_path / name for name in ("run.pt", "new", "third"))
    third.write_bytes(b"third")

    def sync_others():
        other.write_bytes(b"new")
        for one in (tmp_path, third):
            handle = os.open(one, os.O_RDONLY)
            os.fsync(handle)
            os.close(handle)
        os.replace(other, path)

    _, watch = contents_while(path, sync_others)
    assert not watch.synced
    assert os.fsync.__name__ == "fsync"


def test_a_sync_counts_by_whatever_name_it_is_called(tmp_path):
    """
    A sync counts also if the answer calls it by another name, as after `from os import fsync`. The
    new file may be in a folder below.
    """
    path, below = tmp_path / "run.pt", tmp_path / "below"
    below.mkdir()
    fsync, replace = os.fsync, os.replace

    def save():
        with open(below / "new", "wb") as file:
            file.write(b"new")
            file.flush()
            fsync(file.fileno())
        replace(below / "new", path)

    _, watch = contents_while(path, save)
    assert watch.synced
    assert watch.was_beside
    assert not watch.was_written_over


def test_a_file_that_changes_between_two_looks_was_written_over(tmp_path):
    """
    A file that another process changes between two steps was overwritten: it is still the same
    file.
    """
    path, other = tmp_path / "run.pt", tmp_path / "new"
    path.write_bytes(b"old")
    other.write_bytes(b"other")
    _, watch = contents_while(path, lambda: os.system(f"cp '{other}' '{path}'"))
    assert watch.was_written_over


@pytest.mark.parametrize("mode", ["wb", "ab", "xb"])
def test_a_killed_save_leaves_a_part_of_a_longer_file(tmp_path, mode):
    """
    A killed save leaves a part of a file that is longer than the old one. The next save finds it
    there, and is right only if it overwrites that part.
    """
    path = tmp_path / "run" / "run.pt"
    path.parent.mkdir()
    path.write_bytes(b"old")

    def save():
        other = path.with_name("new")
        with open(other, mode) as file:
            torch.save(torch.ones(10_000), file)
        other.replace(path)

    (left,) = left_by_kills(path, save)
    assert (left / "run.pt").read_bytes() == b"old"
    content = (left / "new").read_bytes()
    assert content[:2] == b"PK"
    assert content.endswith(LEFT)
    assert len(content) > path.stat().st_size
    with pytest.raises((RuntimeError, OSError)):
        torch.load(left / "new")


def test_every_file_that_a_save_makes_may_be_left(tmp_path):
    """
    Each file that a save makes may be left by a kill, also a second name that the old file has for
    a moment.
    """
    path = tmp_path / "run" / "run.pt"
    path.parent.mkdir()
    path.write_bytes(b"old")
    new, second = path.with_name("new"), path.with_name("second")

    def save():
        new.write_bytes(b"new")
        os.link(path, second)
        new.replace(path)
        second.unlink()

    lefts = left_by_kills(path, save)
    names = [sorted(file.name for file in left.iterdir()) for left in lefts]
    assert names == [["new", "run.pt"], ["new", "run.pt", "second"], ["run.pt", "second"]]
    assert [(left / "run.pt").read_bytes() for left in lefts] == [b"old", b"old", b"new"]


def test_a_save_in_place_leaves_nothing_else(tmp_path):
    """
    A save in place leaves no other files. The watch sees the file itself.
    """
    path = tmp_path / "run" / "run.pt"
    path.parent.mkdir()
    assert left_by_kills(path, lambda: torch.save(torch.ones(10_000), path)) == []
    assert len(torch.load(path)) == 10_000


def test_who_gives_the_name_is_counted(tmp_path):
    """
    Renames to the file's name are counted, because one rank must do it. Renames of other files do
    not count.
    """
    path, other, third = (tmp_path / name for name in ("run.pt", "new", "third"))

    def rename_both():
        other.write_bytes(b"new")
        other.rename(third)
        os.replace(third, dst=path)

    _, watch = contents_while(path, rename_both)
    assert watch.num_moves == 1


def test_what_stays_open_in_a_folder_is_named(tmp_path):
    """
    Open files and folders below a path are named, because each save that leaks a handle takes one
    of the thousand or so that a run has.
    """
    (tmp_path / "closed").write_bytes(b"")
    with open(tmp_path / "open", "wb"):
        folder = os.open(tmp_path, os.O_RDONLY)
        assert open_below(tmp_path) == sorted(["open", tmp_path.name])
        os.close(folder)
    assert open_below(tmp_path) == []
