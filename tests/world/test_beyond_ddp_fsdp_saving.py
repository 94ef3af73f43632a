"""
A fully sharded run is saved by all ranks, each its own part, and resumed on other numbers of ranks.
"""

import pytest
import torch
from metric_shards import packed, run_packed
from torch import nn
from worlds import run_world

from ddp_lessons.beyond_ddp.fsdp import FullySharded, full_state_dict
from ddp_lessons.checkpoint import Checkpoints, Run
from ddp_lessons.checkpoint.sharded import capture_shards
from ddp_lessons.errors import BadInput, CheckpointRefused
from ddp_lessons.workloads.seeds import seeded

SAVED_BY, SAVED_AT, LAST = 4, 2, 4


class _Net(nn.Module):
    """
    A model with parts that a checkpoint may lose: buffers, a frozen layer, and sizes that no number
    of ranks divides.
    """

    def __init__(self):
        super().__init__()
        self.first = nn.Linear(5, 7)
        self.norm = nn.BatchNorm1d(7)
        self.frozen = nn.Linear(7, 7).requires_grad_(False)
        self.last = nn.Linear(7, 1)
        self.scale = nn.Parameter(torch.ones(()))  # with 3 ranks, two hold no part of it
        self.double()

    def forward(self, x):
        return self.last(self.frozen(self.norm(self.first(x)).relu())) * self.scale


def _run(seed=0):
    with seeded(seed):
        model = FullySharded(_Net())
    trained = [shard for shard in model.shards if shard.requires_grad]
    return Run(model, torch.optim.AdamW(trained, lr=0.01))


def _steps(run, last):
    # All ranks have the same samples, so that the sums do not depend on the number of ranks.
    while run.step < last:
        x = torch.arange(20.0, dtype=torch.float64).view(4, 5).cos() + run.step
        run.optimizer.zero_grad()
        run.model(x).square().mean().backward()
        run.optimizer.step()
        run.optimizer.param_groups[0]["lr"] /= 2  # as a schedule would
        run.step += 1


def _whole(run):
    """
    Return all weights, buffers and moments as whole tensors, and step counts unchanged.
    """
    state = capture_shards(run)["optimizer"]["state"]
    found = {f"model {name}": value for name, value in full_state_dict(run.model).items()}
    for name, values in state.items():
        for key, value in values.items():
            whole = value.full_tensor() if hasattr(value, "full_tensor") else value
            found[f"{name} {key}"] = whole.detach().clone()
    return found


def _save(rank, world_size, root, save):
    run, checkpoints = _run(), Checkpoints(root)
    _steps(run, SAVED_AT)
    getattr(checkpoints, save)(run)
    checkpoints.close()
    saved = _whole(run)
    _steps(run, LAST)
    return packed((saved, _whole(run)))


def _load(rank, world_size, root):
    run = _run(seed=9)
    choice = Checkpoints(root).load(run, exact=False)
    loaded, rate = _whole(run), run.optimizer.param_groups[0]["lr"]
    _steps(run, LAST)
    return packed((choice.step, rate, loaded, _whole(run)))


def _same(one, other):
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


@pytest.mark.bitwise
@pytest.mark.parametrize("save", ["save_sharded", "save_async"])
def test_saved_by_four_ranks_and_loaded_by_others_bit_for_bit(tmp_path, save):
    """
    Weights, moments, step counts and rates have the same bits on 2 ranks as on the 4 that saved,
    and also on 3 ranks, whose shards begin elsewhere. On 2 and 4 ranks, training continues with the
    bits of a run that never stopped.
    """
    saved, gone_on = run_packed(SAVED_BY, _save, str(tmp_path), save)[0]
    assert any(name.endswith("exp_avg_sq") for name in saved)
    for world_size in (2, 3, 4):
        for step, rate, loaded, later in run_packed(world_size, _load, str(tmp_path)):
            assert (step, rate) == (SAVED_AT, 0.01 / 4)
            assert _same(loaded, saved)
            if world_size != 3:  # the mean of 2 or 4 equal numbers is that number
                assert _same(later, gone_on)


def _save_whole(rank, world_size, root):
    try:
        Checkpoints(root).save(_run())
    except BadInput as error:
        return str(error)
    return None


def test_a_sharded_model_is_not_saved_from_rank_0_alone(tmp_path):
    """
    `save` refuses a sharded model: rank 0 holds only a part of it, so the checkpoint would be
    useless.
    """
    for said in run_world(2, _save_whole, str(tmp_path)):
        assert "Use Checkpoints.save_sharded." in said
    assert not list(tmp_path.iterdir())


def _load_other(rank, world_size, root):
    run = _run()
    _steps(run, 1)
    Checkpoints(root).save_sharded(run)
    with seeded(0):
        other = FullySharded(nn.Linear(3, 3).double())
    try:
        Checkpoints(root).load(Run(other, torch.optim.AdamW(other.parameters())))
    except CheckpointRefused as error:
        return str(error)
    return None


def test_a_checkpoint_of_another_model_is_refused(tmp_path):
    """
    Shards are named by numbers. A shard of another size must not be taken for one of the same name.
    """
    for said in run_world(2, _load_other, str(tmp_path)):
        assert "checkpoint does not fit" in said
