"""
A test of the capstone of part 1 with a real SIGKILL of a rank, after which the run is resumed.

The check of the exercise stops all ranks in the middle of a step by an exception, because a killed
rank would lose the learner's variables. This test kills a rank.
"""

import random
import shutil

import pytest
import torch

from ddp_lessons import start_ranks, stop_ranks
from ddp_lessons.course.learner.exercises import solution_of
from ddp_lessons.errors import RankDied
from ddp_lessons.ranks.kernel.cells import run_cell

NUM_STEPS, EVERY, BATCH = 8, 2, 48
PREPARE = f"""
import os, torch, torch.distributed as dist
from pathlib import Path
from torch.nn.parallel import DistributedDataParallel
from ddp_lessons.checkpoint import Checkpoints, Run
from ddp_lessons.checks.kit.shared.passes import idle_passes
from ddp_lessons.process_group import rank_device
from ddp_lessons.workloads import digits_model, load_digits

rank, device = dist.get_rank(), rank_device()
digits = load_digits().to(device)
order = torch.randperm(len(digits.train_labels), generator=torch.Generator().manual_seed(0))
batches = list(order[: {NUM_STEPS * BATCH}].to(device).split({BATCH}))

def fresh_run(seed):
    model = DistributedDataParallel(digits_model(seed).to(device))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    idle_passes(model, torch.ones(1, 64, device=device))
    optimizer.zero_grad()
    return Run(model, optimizer)

def train(run, folder, num_steps={NUM_STEPS}):
    data = (digits.train_images, digits.train_labels, batches[:num_steps])
    finish(run, Checkpoints(folder), *data, 6, {EVERY})
    weights = torch.cat([p.detach().flatten() for p in run.model.parameters()])
    return weights.cpu().double()
"""


def cells(ranks, folder, *lines):
    """
    Run the stored solution and PREPARE on the ranks, then some lines of code.

    Args:
        ranks: The Ranks.
        folder: The folder for checkpoints, which the lines know as `folder`.
        lines: Lines of Python code.
    """
    answer = solution_of("08.5").removeprefix("%%px\n")
    run_cell(ranks, f"{answer}\n{PREPARE}\nfolder = Path({str(folder)!r})")
    run_cell(ranks, "\n".join(lines))


@pytest.mark.bitwise
def test_a_rank_is_killed_and_the_run_goes_on_with_as_many_and_with_fewer(tmp_path):
    """
    A run that is resumed on as many ranks ends with bitwise the same weights; on fewer ranks it
    loses no sample and uses none twice.
    """
    step = random.SystemRandom().randint(EVERY + 1, NUM_STEPS)
    ranks = start_ranks(4)
    try:
        cells(
            ranks,
            tmp_path,
            "whole = train(fresh_run(0), folder / 'whole')",
            f"before_last = train(fresh_run(0), folder / 'shorter', {NUM_STEPS - 1})",
        )
        whole, before_last = ranks.view["whole"][0], ranks.view["before_last"][0]

        with pytest.raises(RankDied, match="rank 2 died"):
            cells(
                ranks,
                tmp_path,
                "run, num_forwards = fresh_run(0), [0]",
                "def count(module, inputs):",
                f"    num_forwards[0] += run.step + 1 == {step}",
                "    if rank == 2 and num_forwards[0] == 2: os.kill(os.getpid(), 9)",
                "run.model.module.register_forward_pre_hook(count)",
                "train(run, folder / 'many')",
            )
        shutil.copytree(tmp_path / "many", tmp_path / "few")

        resume = "resumed = train(fresh_run(1), folder / {!r})"
        cells(ranks, tmp_path, resume.format("many"))
        assert all(torch.equal(resumed, whole) for resumed in ranks.view["resumed"])

        ranks.stop()
        ranks = start_ranks(2)
        cells(ranks, tmp_path, resume.format("few"))
        # One sample that is lost or used twice would move the weights by about 1 / BATCH of the
        # last step. Sums in another order differ by far less than a tenth of that.
        most_off = (whole - before_last).norm() / BATCH / 10
        assert all((resumed - whole).norm() < most_off for resumed in ranks.view["resumed"])
    finally:
        stop_ranks()
