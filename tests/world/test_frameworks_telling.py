"""
The environment that tells a framework its rank: who sets it, for how long, and what is left
afterwards.
"""

import os
import subprocess
import sys

import pytest
import torch
from framework_worlds import needs_frameworks, small_model
from worlds import run_world

from ddp_lessons.frameworks import forget_accelerate, quiet, told, untold

FIVE = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT")


def _environments(rank, world_size):
    os.environ["RANK"] = "7"
    sys.ps1 = "> "
    found = []
    with told():
        found.append([os.environ[name] for name in FIVE[:3]])
        found.append([os.environ["OMP_NUM_THREADS"], hasattr(sys, "ps1")])
    found.append([os.environ["RANK"], *(name in os.environ for name in FIVE[1:]), sys.ps1])
    with untold():
        found.append([name in os.environ for name in FIVE])
    found.append(os.environ["RANK"])
    return found


def test_telling_ends_with_its_block():
    """
    The environment is restored after the block, or the next cell would find these variables.
    """
    for rank, found in enumerate(run_world(2, _environments)):
        threads = str(torch.get_num_threads()) if rank < 0 else "1"
        assert found[0] == [str(rank), "2", str(rank)]
        assert found[1] == [threads, False]
        assert found[2] == ["7", False, False, False, False, "> "]
        assert found[3] == [False] * 5
        assert found[4] == "7"


def _worlds_of_accelerate(rank, world_size):
    from accelerate import Accelerator

    with untold():
        model = Accelerator(cpu=True).prepare(small_model())
        found = [Accelerator(cpu=True).num_processes, type(model).__name__]
    with told():
        found += [Accelerator(cpu=True).num_processes, Accelerator(cpu=True).process_index]
    return found


@needs_frameworks
def test_accelerate_finds_what_it_is_told_now():
    """
    A new Accelerator uses the present environment. Without `told`, it would reuse the state of the
    process's first Accelerator.
    """
    found = run_world(3, _worlds_of_accelerate)
    assert found == [[1, "Sequential", 3, rank] for rank in range(3)]


def _fabric_at_a_prompt(rank, world_size):
    quiet()
    sys.ps1 = "> "
    from lightning_fabric import Fabric

    settings = {"accelerator": "cpu", "devices": world_size, "strategy": "ddp"}
    found = []
    for _ in range(2):
        with told():
            found.append(Fabric(**settings).world_size)
        with pytest.raises(RuntimeError, match="interactive environment"):
            Fabric(**settings)
    return found


@needs_frameworks
def test_fabric_takes_a_rank_that_is_told_for_a_script():
    """
    Fabric refuses a process with a prompt, such as a notebook's rank. Inside `told` the prompt is
    hidden, and Fabric works.
    """
    assert run_world(2, _fabric_at_a_prompt) == [[2, 2], [2, 2]]


def test_frameworks_are_not_imported_before_they_are_needed():
    """
    Importing ddp_lessons does not import the frameworks. Ranks would start seconds later, and would
    not start at all without the frameworks.
    """
    forget_accelerate()  # no Accelerator exists, so this changes nothing
    code = (
        "import sys, ddp_lessons.frameworks, ddp_lessons.checks.frameworks\n"
        "assert not {'accelerate', 'lightning_fabric', 'lightning'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
