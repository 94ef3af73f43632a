"""
A run that was stopped and resumed equals a run that never stopped, to the last bit.
"""

import pickle

import pytest
import torch
from checkpoint_runs import fingerprint, make_run, train
from torch.utils.data import DataLoader
from worlds import run_world

from ddp_lessons.checkpoint import CheckpointRefused, Run, capture, load, naive, restore, save
from ddp_lessons.checkpoint.state import bare
from ddp_lessons.errors import BadInput

STOP, TOTAL = 9, 17


def _compare(rank, world_size, path, adam):
    whole, seen_whole = make_run(adam=adam), []
    train(whole, TOTAL, seen_whole)
    wanted = fingerprint(whole)

    stopped, seen = make_run(adam=adam), []
    train(stopped, STOP, seen)
    save(capture(stopped), path)

    # The resumed run starts with other weights and random numbers, so that nothing can be right by
    # chance.
    resumed = make_run(seed=5, rank_seed=900, adam=adam)
    restore(resumed, load(path))
    train(resumed, TOTAL - STOP, seen)
    return wanted, fingerprint(resumed), seen_whole, seen


@pytest.mark.bitwise
@pytest.mark.parametrize(
    ("world_size", "adam"), [(1, True), (2, False), (2, True), (3, True), (4, False)]
)
def test_resume_is_bitwise_equal_to_a_run_that_never_stopped(tmp_path, world_size, adam):
    """
    Resuming is exact with dropout, momentum, a schedule, a scaler, and a shuffle that stopped in
    the middle of an epoch (claim C21).

        There is no tolerance: the same operations on the same bits give the same bits.
    """
    path = str(tmp_path / "run.pt")
    for whole, resumed, seen_whole, seen in run_world(world_size, _compare, path, adam):
        assert resumed == whole
        assert seen == seen_whole


def _compare_naive(rank, world_size, path):
    whole = make_run()
    train(whole, STOP)
    if rank == 0:
        naive.save(naive.capture(whole), path)
    train(whole, 1)
    torch.distributed.barrier()
    resumed = make_run()
    naive.restore(resumed, naive.load(path))
    train(resumed, 1)
    return fingerprint(whole)["model"], fingerprint(resumed)["model"]


def test_weights_alone_do_not_resume_a_run(tmp_path):
    """
    Weights alone do not resume a run: already the next step leads to other weights (claims C20,
    C21, and the row "weights only").
    """
    path = str(tmp_path / "run.pt")
    for whole, resumed in run_world(2, _compare_naive, path):
        assert whole != resumed


@pytest.mark.bitwise
@pytest.mark.parametrize(
    "part", ["optimizer", "scheduler", "scaler", "sampler", "python", "numpy", "torch"]
)
def test_each_part_alone_is_missed(part):
    """
    Every entry of the checkpoint is needed: without any of them the resumed run ends with other
    weights.
    """
    fresh = pickle.loads(pickle.dumps(capture(make_run(seed=5, rank_seed=900))))
    whole = make_run()
    train(whole, STOP)
    state = pickle.loads(pickle.dumps(capture(whole)))  # a copy that training leaves alone
    train(whole, TOTAL - STOP)
    wanted = fingerprint(whole)

    resumed = make_run()
    restore(resumed, state)
    train(resumed, TOTAL - STOP)
    assert fingerprint(resumed) == wanted

    if part in ("python", "numpy", "torch"):
        state["ranks"][0]["rng"][part] = fresh["ranks"][0]["rng"][part]
    elif part == "sampler":
        state["ranks"][0]["sampler"] = fresh["ranks"][0]["sampler"]
    else:
        state[part] = fresh[part]
    resumed = make_run()
    restore(resumed, state)
    train(resumed, TOTAL - STOP)
    assert fingerprint(resumed) != wanted


def _samples_twice(run, capture, restore, num_epochs):
    """
    Train an epoch, save at its end as a tutorial does, and resume. Return how often each sample was
    seen.
    """
    seen = []

    def one_epoch(run, epoch):
        for batch in run.sampler.batches(epoch):
            seen.extend(batch.tolist())

    for epoch in run.remaining_epochs(num_epochs):
        one_epoch(run, epoch)
        state = pickle.loads(pickle.dumps(capture(run)))
        break  # the machine fails here
    resumed = make_run()
    restore(resumed, state)
    for epoch in resumed.remaining_epochs(num_epochs):
        one_epoch(resumed, epoch)
    return [seen.count(index) for index in range(26)]


def test_no_sample_is_seen_twice_when_the_epoch_is_saved_after_running_it():
    """
    The row "save the epoch after running it": the naive run repeats the first epoch.
    """
    assert _samples_twice(make_run(), capture, restore, num_epochs=2) == [2] * 26
    assert _samples_twice(make_run(), naive.capture, naive.restore, num_epochs=2) == [3] * 26


def test_saved_after_its_last_epoch_a_run_has_none_left():
    """
    A finished run that is loaded again does not train on.
    """
    run = make_run()
    assert list(run.remaining_epochs(3)) == [0, 1, 2]
    resumed = make_run()
    restore(resumed, capture(run))
    assert list(resumed.remaining_epochs(3)) == []


def _first_numbers(order, generator):
    """
    Return whether torch draws the right numbers after a resume, with the loader made before or
    after `restore`.
    """
    data = torch.arange(6.0)
    torch.manual_seed(0)
    iterator = iter(DataLoader(data, batch_size=2))
    next(iterator)
    state = capture(Run(torch.nn.Linear(1, 1), torch.optim.SGD([torch.zeros(1)], lr=1.0)))
    wanted = torch.rand(2).tolist()
    run = Run(torch.nn.Linear(1, 1), torch.optim.SGD([torch.zeros(1)], lr=1.0))
    loader = DataLoader(data, batch_size=2, generator=generator)
    if order == "restore last":
        iter(loader)
        restore(run, state)
    else:
        restore(run, state)
        iter(loader)
    return torch.rand(2).tolist() == wanted


def test_making_a_loader_after_restore_draws_a_number():
    """
    Making a DataLoader's iterator draws a number from torch's generator. If that happens after
    `restore`, the run looks resumed and is not.
    """
    assert not _first_numbers("loader last", None)
    assert _first_numbers("loader last", torch.Generator())
    assert _first_numbers("restore last", None)


def _other_world(rank, world_size, path):
    run = make_run()
    state = load(path)
    try:
        restore(run, state)
    except CheckpointRefused as error:
        fault = str(error)
    restore(run, state, exact=False)
    return fault, run.step, [p.tolist() for p in bare(run.model).parameters()]


def test_another_number_of_ranks_must_be_asked_for(tmp_path):
    """
    Two ranks cannot continue bit for bit where one rank stopped, so `restore` refuses unless
    `exact=False` is passed.
    """
    path, run = str(tmp_path / "run.pt"), make_run()
    train(run, 3)
    save(capture(run), path)
    weights = [p.tolist() for p in run.model.parameters()]
    for rank, (fault, step, loaded) in enumerate(run_world(2, _other_world, path)):
        assert fault == (
            f"checkpoint of another world: expected 1 ranks (got 2, rank {rank} of 2). Pass "
            "exact=False to go on with new random numbers."
        )
        assert (step, loaded) == (3, weights)


@pytest.mark.parametrize("part", ["model", "optimizer", "scheduler", "scaler", "sampler", "step"])
def test_restore_names_the_missing_part_and_changes_nothing(part):
    """
    A checkpoint without an entry is refused before anything changes, because a half restored run
    would be worse than none.
    """
    state, run = capture(make_run()), make_run(seed=4)
    del (state["ranks"][0] if part == "sampler" else state)[part]
    weights = [p.tolist() for p in run.model.parameters()]
    with pytest.raises(CheckpointRefused, match=f"lacks a part: .*got no {part}, rank 0 of 1"):
        restore(run, state)
    assert weights == [p.tolist() for p in run.model.parameters()]


def test_capture_wants_a_module():
    """
    `capture` refuses a function, which has no weights to save.
    """
    with pytest.raises(BadInput, match=r"expected a torch\.nn\.Module"):
        capture(Run(print, None))


def test_a_run_of_model_and_optimizer_alone_is_enough():
    """
    A model and an optimizer are enough; schedule, scaler and sampler are optional.
    """
    model = torch.nn.Linear(2, 2)
    run = Run(model, torch.optim.SGD(model.parameters(), lr=0.1))
    state = capture(run)
    assert sorted(state) == ["epoch", "model", "optimizer", "ranks", "step", "world_size"]
    run.step = 4
    restore(run, state)
    restore(run, {**state, "world_size": 2, "step": 7}, exact=False)
    assert run.step == 7


@pytest.mark.gpu
def test_random_numbers_of_the_gpu_come_back():
    """
    The random state of the GPU is restored, because dropout on a GPU draws its numbers there.
    """
    torch.rand(1, device="cuda")
    model = torch.nn.Linear(2, 2, device="cuda")
    run = Run(model, torch.optim.SGD(model.parameters(), lr=0.1))
    state = capture(run)
    drawn = torch.rand(4, device="cuda").tolist()
    restore(run, state)
    assert torch.rand(4, device="cuda").tolist() == drawn
