"""
Hold what the checks of exercise 08 see of a file while it is saved.
"""

import os

import torch

from ddp_lessons.checkpoint.atomic import write_state
from ddp_lessons.checks.kit.disk import FileWatch


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
