"""
The files by which JupyterLab's sidebar lists sets of ranks: named for the notebook, and removed
after the ranks' death.
"""

import json
import os
import platform
import subprocess
import sys

import pytest

from ddp_lessons.ranks.system.cluster_files import (
    files_of,
    new_cluster_id,
    remove_files_of_the_dead,
)


@pytest.mark.parametrize(
    ("notebook", "begins"),
    [
        ("/home/ada/my-course/notebooks/00_ranks.ipynb", "ddp-lessons-00_ranks-"),
        ("Untitled (copy) é.ipynb", "ddp-lessons-Untitled-copy-"),
        ("é.ipynb", "ddp-lessons-"),
        (None, "ddp-lessons-"),
    ],
)
def test_a_set_is_called_as_its_notebook(monkeypatch, notebook, begins):
    """
    A set of ranks is named for its notebook, because a list of numbers does not show which set
    belongs to which notebook.
    """
    if notebook is None:
        monkeypatch.delenv("JPY_SESSION_NAME", raising=False)
    else:
        monkeypatch.setenv("JPY_SESSION_NAME", notebook)
    first, second = new_cluster_id(), new_cluster_id()
    assert first != second
    assert first.startswith(begins)
    assert len(first) == len(begins) + 12
    assert all(sign.isascii() and (sign.isalnum() or sign in "-_") for sign in first)


@pytest.fixture
def listed(tmp_path):
    """
    Return a function that writes the files of a set, given its supervisor's process id.
    """
    for folder in ("security", "log"):
        (tmp_path / folder).mkdir()

    def write(cluster_id, pid, host=None):
        told = {"controller": {"state": {"supervisor_pid": pid}}}
        files = files_of(tmp_path, cluster_id)
        for file, content in zip(
            files, [told, {"location": host or platform.node()}, {}, {}], strict=True
        ):
            file.write_text(json.dumps(content))
        return files

    return write


def test_files_of_the_dead_are_removed_and_no_others(tmp_path, listed):
    """
    Files of dead sets are removed, and no others. A supervisor that is killed leaves its files, and
    the sidebar would show its set as running.
    """
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    dead = listed("ddp-lessons-dead", ended.pid)
    kept = [
        *listed("ddp-lessons-alive", os.getpid()),
        *listed("ddp-lessons-of-root", 1),
        *listed("ddp-lessons-elsewhere", ended.pid, host="another"),
        *listed("not-ours", ended.pid),
    ]
    half_written = tmp_path / "security" / "cluster-ddp-lessons-new.json"
    half_written.write_text("{")
    remove_files_of_the_dead(tmp_path)
    assert not any(file.exists() for file in dead)
    assert all(file.exists() for file in [*kept, half_written])
    remove_files_of_the_dead(tmp_path / "no-such-profile")
