"""
Tests of the demonstration in which a second node joins a job of torchrun, and leaves it.
"""

import re
import runpy
import sys

import pytest
import torch.distributed as dist

from ddp_lessons.launch import Place, free_port

MODULE = "ddp_lessons.launch.joining"


@pytest.fixture
def run_module(monkeypatch):
    """
    Return a function that runs the module as `python -m` does.
    """

    def run():
        monkeypatch.delitem(sys.modules, MODULE, raising=False)
        runpy.run_module(MODULE, run_name="__main__")

    return run


class Ended(Exception):
    """
    The error by which a test ends a worker.
    """


def test_each_world_has_new_processes_and_only_a_loss_is_a_life(run_module, capsys, monkeypatch):
    """
    Each change of the world size starts new processes, and only the loss of a node counts as a
    restart, which the module calls a life.
    """
    monkeypatch.delenv("RANK", raising=False)
    run_module()
    said = capsys.readouterr().out.splitlines()
    found = [re.fullmatch(r"a world of (\d), process (\d+), life (\d)", line) for line in said]
    worlds, processes, lives = zip(*(one.groups() for one in found if one), strict=True)
    assert worlds == ("1", "2", "1")
    assert len(set(processes)) == len(found)
    assert lives == ("0", "0", "1")


def test_worker_steps_until_it_is_ended(run_module, capsys, monkeypatch):
    """
    A worker prints its world size and its life, and takes steps until it is ended.
    """
    for name, value in Place(0, 1, 0, "127.0.0.1", free_port()).variables().items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", "2")
    naps = []

    def nap(seconds):
        naps.append(seconds)
        if len(naps) == 3:
            raise Ended

    monkeypatch.setattr("time.sleep", nap)
    try:
        with pytest.raises(Ended):
            run_module()
    finally:
        dist.destroy_process_group()
    assert re.fullmatch(r"a world of 1, process \d+, life 2\n", capsys.readouterr().out)
