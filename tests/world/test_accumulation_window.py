"""
A window synchronises gradients once, and gives the gradient of one process on the whole batch.
"""

import contextlib

import pytest
import torch
import torch.distributed as dist
from accumulation_toy import (
    SHARES,
    Toy,
    exactly,
    gradients,
    mean_loss,
    oracle,
    parts_of,
    run_window,
    sent,
    sized,
)
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook
from torch.nn.parallel import DistributedDataParallel
from worlds import WORLD_SIZES, run_world

from ddp_lessons.accumulation import windows
from ddp_lessons.errors import BadInput
from ddp_lessons.replicas import NaiveReplica, OverlappedReplica


def counted_ddp(toy):
    """
    Return a DDP model with the smallest possible buckets, a list, and the number of buckets.

        The list gets an entry for each all-reduce of a bucket. The buckets are rebuilt already, as
        after a first step.
    """
    calls = []

    def counting_hook(group, bucket):
        calls.append(bucket.index())
        return allreduce_hook(group, bucket)

    # 8 bytes: every parameter has its own bucket.
    model = DistributedDataParallel(toy, bucket_cap_mb=8 / 2**20)
    model.register_comm_hook(None, counting_hook)
    for _ in range(2):  # the first step rebuilds the buckets
        model.zero_grad()
        calls.clear()
        model(torch.ones(1, 3, dtype=torch.float64)).sum().backward()
    num_buckets = len(calls)
    return model, calls, num_buckets


def _windows_on_ddp(rank, world_size):
    model, calls, num_buckets = counted_ddp(Toy())
    results = {}
    for case in SHARES:
        everyone, own = sized(rank, case, world_size)
        parts = parts_of(rank, everyone)
        for name, options in {
            "micro-batches": {},
            "local": {"sizes": own},
            "global": {"sizes": own, "across_ranks": True},
        }.items():
            calls.clear()
            results[case, name] = (sent(run_window(model, parts, **options)), len(calls))
    # Guides do it in two other ways: a sync with every micro-batch, or `no_sync` around backward
    # alone.
    everyone, own = sized(rank, "equal", world_size)
    parts = parts_of(rank, everyone)
    for name in ("every time", "backward alone"):
        model.zero_grad()
        calls.clear()
        for number, (inputs, targets) in enumerate(parts, start=1):
            loss = mean_loss(model, inputs, targets) / len(parts)
            alone = name == "backward alone" and number < len(parts)
            with model.no_sync() if alone else contextlib.nullcontext():
                loss.backward()
        results["equal", name] = (sent(gradients(model)), len(calls))
    return num_buckets, results


@pytest.mark.parametrize("world_size", WORLD_SIZES)
def test_window_syncs_each_bucket_once_and_is_the_whole_batch(world_size):
    """
    A window gives the gradient of one process, with one all-reduce for each bucket, however unequal
    the micro-batches are (claims C16, C18). Weighting by micro-batches or by the rank's own samples
    is right only in the cases that `right_names` lists.
    """
    worlds = run_world(world_size, _windows_on_ddp)
    num_buckets = worlds[0][0]
    assert num_buckets > 1
    right_names = {
        "equal": {"micro-batches", "local", "global"},
        "equal sums": {"local", "global"},
        "unequal": {"global"} if world_size > 1 else {"local", "global"},
    }
    for case, right in right_names.items():
        whole, bound = oracle(sum(map(sum, SHARES[case][:world_size])))
        for _, results in worlds:
            for name in ("micro-batches", "local", "global"):
                gradient, num_calls = results[case, name]
                is_right = bool(((exactly(gradient) - whole).abs() <= bound).all())
                assert is_right == (name in right), (case, name)
                assert num_calls == num_buckets
                assert gradient == worlds[0][1][case, name][0], "ranks differ"
    for _, results in worlds:
        whole, bound = oracle(6 * world_size)
        for name in ("every time", "backward alone"):
            gradient, num_calls = results["equal", name]
            gradient = exactly(gradient)
            assert ((gradient - whole).abs() <= bound * 3).all(), "each sync rounds anew"
            assert num_calls == 3 * num_buckets, "right, at three times the messages"


def _windows_on_others(rank, world_size):
    everyone, own = sized(rank, "unequal", world_size)
    parts = parts_of(rank, everyone)
    results = []
    for kind in (NaiveReplica, OverlappedReplica):
        results.append(run_window(kind(Toy()), parts, sizes=own, across_ranks=True))
    bare = Toy()  # averaged by hand
    gradient = run_window(bare, parts, sizes=own, across_ranks=True)
    dist.all_reduce(gradient)
    return [sent(result) for result in (*results, gradient / world_size)]


@pytest.mark.parametrize("world_size", [1, 3])
def test_window_serves_replicas_and_bare_modules(world_size):
    """
    A window works with any model that has `no_sync`, and with a bare module, which synchronises
    nothing.
    """
    whole, bound = oracle(sum(map(sum, SHARES["unequal"][:world_size])))
    for results in run_world(world_size, _windows_on_others):
        for gradient in results:
            gradient = exactly(gradient)
            assert ((gradient - whole).abs() <= bound).all()


def test_windows_lose_no_batch():
    """
    `windows` also yields the last, shorter window. A loop that steps only at every k-th batch drops
    the rest of the epoch (claim C18).
    """
    assert list(windows(range(10), 4)) == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]
    assert list(windows([], 4)) == []
    stepped = [batch for batch in range(10) if batch // 4 < 10 // 4]
    assert len(stepped) == 8, "what `if (i + 1) % 4 == 0: step()` lets reach a step"
    with pytest.raises(BadInput, match="expected 1 micro-batch or more"):
        windows(range(10), 0)


def test_last_short_window_has_the_whole_weight():
    """
    The last, shorter window has its full weight. If its loss were divided by k as well, its
    gradient would be too small (claim C18).
    """
    whole, bound = oracle(4)
    parts = parts_of(0, [[2, 2]])
    assert ((run_window(Toy(), parts) - whole).abs() <= bound).all()
    model = Toy()
    for inputs, targets in parts:
        (mean_loss(model, inputs, targets) / 4).backward()
    assert ((gradients(model) - whole / 2).abs() <= bound).all()


def test_unequal_micro_batches_weigh_by_their_samples():
    """
    Unequal micro-batches are weighted by their samples, because the mean of means is not the mean,
    in one process as on many ranks.
    """
    whole, bound = oracle(4)
    parts = parts_of(0, [[3, 1]])
    assert ((run_window(Toy(), parts, sizes=[3, 1]) - whole).abs() <= bound).all()
    assert ((run_window(Toy(), parts) - whole).abs() > bound).any()


def _window_in_a_subgroup(rank, world_size):
    pair = dist.new_group([0, 1])
    if rank == 2:
        return None
    everyone, own = sized(rank, "unequal", 2)
    results = []
    for model in (
        DistributedDataParallel(Toy(), process_group=pair),
        NaiveReplica(Toy(), group=pair),
    ):
        gradient = run_window(model, parts_of(rank, everyone), sizes=own, across_ranks=True)
        results.append(sent(gradient))
    return results


def test_window_weighs_over_the_group_that_the_model_averages_over():
    """
    The number of samples is summed over the model's own group. A sum over all ranks would wait for
    a rank that trains another model.
    """
    whole, bound = oracle(sum(map(sum, SHARES["unequal"][:2])))
    first, second, outside = run_world(3, _window_in_a_subgroup)
    assert outside is None
    for gradient in first + second:
        assert ((exactly(gradient) - whole).abs() <= bound).all()
