"""
Hold what the checks of exercise 08 see of a file while it is saved.
"""

import os

import pytest
import torch

from ddp_lessons.checkpoint.atomic import write_state
from ddp_lessons.checks.kit.on_rank.file_watch import LEFT, FileWatch, left_by_kills, open_below


def contents_while(path, write):
    """
    Return the contents that were seen while a function ran, and the watch.
    """
    with FileWatch(path) as watch:
        write()
    return [content for _, content in watch.versions], watch


def test_a_save_in_place_is_seen_half_done(tmp_path):
    """
    Opening a file empties it, and nobody may miss that because the save was quick.
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
    The course's own save must pass where a save in place does not.
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
    Between remove and rename there is nothing to load.
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
    What matters is what was on the disk when the file took its name.
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
    A folder's sync writes names to the disk, and another file's sync another file.
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
    `from os import fsync` is as good, and so is a folder below.
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
    What another process or thread does is one step for the watch; the file is the same one.
    """
    path, other = tmp_path / "run.pt", tmp_path / "new"
    path.write_bytes(b"old")
    other.write_bytes(b"other")
    _, watch = contents_while(path, lambda: os.system(f"cp '{other}' '{path}'"))
    assert watch.was_written_over


@pytest.mark.parametrize("mode", ["wb", "ab", "xb"])
def test_a_killed_save_leaves_a_part_of_a_longer_file(tmp_path, mode):
    """
    The next save meets it, and only one that begins anew is right.
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
    Also a second name for the old file, which is there for a moment only.
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
    What is under the name at each moment is seen by the watch.
    """
    path = tmp_path / "run" / "run.pt"
    path.parent.mkdir()
    assert left_by_kills(path, lambda: torch.save(torch.ones(10_000), path)) == []
    assert len(torch.load(path)) == 10_000


def test_who_gives_the_name_is_counted(tmp_path):
    """
    One rank may do it, and a rename of something else is none.
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
    Each save that leaves a handle takes one from a run, which has some thousand.
    """
    (tmp_path / "closed").write_bytes(b"")
    with open(tmp_path / "open", "wb"):
        folder = os.open(tmp_path, os.O_RDONLY)
        assert open_below(tmp_path) == sorted(["open", tmp_path.name])
        os.close(folder)
    assert open_below(tmp_path) == []
