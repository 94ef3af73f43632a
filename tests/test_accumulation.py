"""
One sync a window, and the gradient of one process on the whole batch.

The toy is linear with whole numbers for weights, inputs and targets: the gradient of each sample is
exact, so only the weighing and adding up of N samples rounds.
"""

import contextlib
import itertools
import math

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook
from torch.nn.parallel import DistributedDataParallel
from torch.optim.lr_scheduler import ReduceLROnPlateau
from torch.utils.data import DataLoader
from worlds import run_world

from ddp_lessons.accumulation import (
    PlateauSchedule,
    SavedBytes,
    Window,
    clip_gradients,
    effective_batch_size,
    global_mean,
    scaled_learning_rate,
    set_learning_rate,
    state_bytes,
    warmup_cosine,
    windows,
)
from ddp_lessons.errors import BadInput
from ddp_lessons.replicas import NaiveReplica, OverlappedReplica
from ddp_lessons.samplers import ResumableSampler

EPS = torch.finfo(torch.float64).eps
WORLD_SIZES = [1, 2, 3, 4]


@pytest.fixture
def lone_group():
    """
    A group of this process alone.
    """
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


class Toy(nn.Module):
    """
    Two linear maps, added: whole numbers stay whole, and there are parameters for three buckets.
    """

    def __init__(self):
        super().__init__()
        self.one, self.two = nn.Linear(3, 2), nn.Linear(3, 2)
        self.double()
        generator = torch.Generator().manual_seed(1)
        with torch.no_grad():
            for parameter in self.parameters():
                parameter.copy_(torch.randint(-4, 5, parameter.shape, generator=generator))

    def forward(self, inputs):
        return self.one(inputs) + self.two(inputs)


def mean_loss(model, inputs, targets):
    return (model(inputs) - targets).square().sum(dim=1).mean()


def samples(num_samples):
    generator = torch.Generator().manual_seed(2)
    inputs = torch.randint(-5, 6, (num_samples, 3), generator=generator).double()
    targets = torch.randint(-5, 6, (num_samples, 2), generator=generator).double()
    return inputs, targets


def gradients(model):
    return torch.cat([p.grad.flatten() for p in model.parameters()])


def oracle(num_samples):
    """
    Return the gradient of one process on the whole batch, and the largest rounding of another way.

    Each sample's gradient is exact. Every way of weighing and adding rounds each term at most once
    for each addition (N, and w for the ranks) and four times for its weights.
    """
    inputs, targets = samples(num_samples)
    model = Toy()
    mean_loss(model, inputs, targets).backward()
    whole = gradients(model)
    size = torch.zeros_like(whole)
    for sample in range(num_samples):
        model.zero_grad()
        mean_loss(model, inputs[sample : sample + 1], targets[sample : sample + 1]).backward()
        size += gradients(model).abs() / num_samples
    # 2 x: the oracle rounds as well.
    return whole, 2 * (num_samples + 4 + 4) * EPS * size


def parts_of(rank, sizes_by_rank):
    """
    Return a rank's micro-batches: ranks take their samples from the batch one after the other.
    """
    inputs, targets = samples(sum(map(sum, sizes_by_rank)))
    begin = sum(map(sum, sizes_by_rank[:rank]))
    end = begin + sum(sizes_by_rank[rank])
    return list(
        zip(
            inputs[begin:end].split(sizes_by_rank[rank]),
            targets[begin:end].split(sizes_by_rank[rank]),
            strict=True,
        )
    )


def counted_ddp(toy):
    """
    Return a DDP with buckets as small as they get, rebuilt as after a first step, the list that
    gets an entry for each all-reduce of a bucket, and the number of buckets.
    """
    calls = []

    def counting_hook(group, bucket):
        calls.append(bucket.index())
        return allreduce_hook(group, bucket)

    # 8 bytes: every parameter has a bucket of its own.
    model = DistributedDataParallel(toy, bucket_cap_mb=8 / 2**20)
    model.register_comm_hook(None, counting_hook)
    for _ in range(2):  # the first step rebuilds the buckets
        model.zero_grad()
        calls.clear()
        model(torch.ones(1, 3, dtype=torch.float64)).sum().backward()
    num_buckets = len(calls)
    return model, calls, num_buckets


def run_window(model, parts, **options):
    model.zero_grad()
    with Window(model, parts, **options) as window:
        for inputs, targets in window:
            window.backward(mean_loss(model, inputs, targets))
    return gradients(model)


def sent(tensor):
    """
    Return a tensor as plain numbers, which outlive the process that made them; exact in float64.
    """
    return tensor.tolist()


def exactly(numbers):
    return torch.tensor(numbers, dtype=torch.float64)


SHARES = {
    # Sizes of each rank's micro-batches; a world takes the first w.
    "equal": [[2, 2, 2]] * 4,
    "equal sums": [[3, 1, 2], [1, 1, 4], [5, 1], [2, 4]],
    "unequal": [[3, 1], [2, 2, 2], [7], [1, 1, 1, 1, 1]],
}


def sized(rank, case, world_size):
    """
    Return the sizes of all ranks, and this rank's.
    """
    everyone = SHARES[case][:world_size]
    return everyone, everyone[rank]


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
    # What guides do: a sync with every micro-batch, or no_sync round backward alone.
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


@pytest.mark.ranks
@pytest.mark.parametrize("world_size", WORLD_SIZES)
def test_window_syncs_each_bucket_once_and_is_the_whole_batch(world_size):
    """
    The gradient of one process, for one all-reduce a bucket, however unequal the micro-batches
    (C16, C18). Weighing by micro-batches or by this rank's samples is right where it says so only.
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


@pytest.mark.ranks
@pytest.mark.parametrize("world_size", [1, 3])
def test_window_serves_replicas_and_bare_modules(world_size):
    """
    Whatever has `no_sync`, or nothing to sync.
    """
    whole, bound = oracle(sum(map(sum, SHARES["unequal"][:world_size])))
    for results in run_world(world_size, _windows_on_others):
        for gradient in results:
            gradient = exactly(gradient)
            assert ((gradient - whole).abs() <= bound).all()


def test_windows_lose_no_batch():
    """
    A loop that steps at every k-th batch forgets the rest of the epoch (C18).
    """
    assert list(windows(range(10), 4)) == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]
    assert list(windows([], 4)) == []
    stepped = [batch for batch in range(10) if batch // 4 < 10 // 4]
    assert len(stepped) == 8, "what `if (i + 1) % 4 == 0: step()` lets reach a step"
    with pytest.raises(BadInput, match="expected 1 micro-batch or more"):
        windows(range(10), 0)


def test_last_short_window_has_the_whole_weight():
    """
    Dividing by k there as well makes the last gradient too small (C18).
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
    In one process, too, the mean of means is not the mean.
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


@pytest.mark.ranks
def test_window_weighs_over_the_group_that_the_model_averages_over():
    """
    Weights over all ranks would wait for one that has another model.
    """
    whole, bound = oracle(sum(map(sum, SHARES["unequal"][:2])))
    first, second, outside = run_world(3, _window_in_a_subgroup)
    assert outside is None
    for gradient in first + second:
        assert ((exactly(gradient) - whole).abs() <= bound).all()


def test_state_after_a_window_counts_its_batches():
    """
    A window takes as many batches from the loader as it steps with, and none ahead.
    """
    sampler = ResumableSampler(range(20), rank=0, world_size=2)
    loader = DataLoader(range(20), 2, sampler=sampler)
    positions = [
        (len(batches), sampler.state_dict()["position"])
        for batches in windows(sampler.deliver(loader), 2)
    ]
    assert positions == [(2, 8), (2, 16), (1, 20)]


def test_forgetting_to_divide_multiplies_the_gradient():
    """
    The loss still falls, with a learning rate k times as large (C18).
    """
    whole, bound = oracle(6)
    model = Toy()
    for inputs, targets in parts_of(0, [[2, 2, 2]]):
        mean_loss(model, inputs, targets).backward()
    assert ((gradients(model) - 3 * whole).abs() <= 3 * bound).all()


def test_window_adds_to_gradients_that_were_not_cleared():
    """
    So zero_grad must follow each step (C18).
    """
    model, parts = Toy(), parts_of(0, [[2, 2]])
    once = run_window(model, parts)
    for _ in range(2):
        with Window(model, parts) as window:
            for inputs, targets in window:
                window.backward(mean_loss(model, inputs, targets))
    assert torch.allclose(gradients(model), 3 * once, rtol=8 * EPS, atol=0)


@pytest.mark.parametrize("zero_first", [True, False])
def test_zero_grad_before_step_learns_nothing(zero_first):
    """
    Forward, backward, zero_grad, step: the weights do not move (C15).
    """
    model = Toy()
    before = [p.detach().clone() for p in model.parameters()]
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    for _ in range(3):
        if not zero_first:
            optimizer.zero_grad()
        mean_loss(model, *samples(6)).backward()
        if zero_first:
            optimizer.zero_grad()
        optimizer.step()
    same = [torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True)]
    assert same == [zero_first] * 4


class Watched(Toy):
    """
    A toy that knows whether it is inside its `no_sync`.
    """

    is_local = False

    @contextlib.contextmanager
    def no_sync(self):
        self.is_local = True
        try:
            yield
        finally:
            self.is_local = False


def test_window_leaves_no_sync_when_its_loop_breaks_off():
    """
    A model left in `no_sync` would never sync again; a window without its sync must not pass.
    """
    model, parts = Watched(), parts_of(0, [[2, 2, 2]])
    was_local = []

    def break_off():
        with Window(model, parts) as window:
            for inputs, targets in window:
                window.backward(mean_loss(model, inputs, targets))
                was_local.append(model.is_local)
                break

    def fail():
        with Window(model, parts) as window:
            for _ in window:
                was_local.append(model.is_local)
                raise ZeroDivisionError

    with pytest.raises(BadInput, match=r"^Unfinished window: expected a loop over all 3 micro"):
        break_off()
    assert not model.is_local
    with pytest.raises(ZeroDivisionError):
        fail()
    assert not model.is_local
    assert was_local == [True, True]
    with pytest.raises(BadInput, match="Unfinished"), Window(model, parts):
        pass


def test_window_may_be_left_after_its_last_backward():
    """
    It has synced by then.
    """
    model, parts = Watched(), parts_of(0, [[2, 2]])
    with Window(model, parts) as window:
        for number, (inputs, targets) in enumerate(window):
            window.backward(mean_loss(model, inputs, targets))
            assert model.is_local == (number == 0)
            if number == 1:
                break


def test_window_refuses_what_would_go_wrong_unnoticed():
    """
    Each of these would train on, with a wrong gradient or with ranks that wait.
    """
    model, parts = Toy(), parts_of(0, [[2, 2]])
    with pytest.raises(BadInput, match=r"^Empty window"):
        Window(model, [])
    with pytest.raises(BadInput, match=r"^No sizes"):
        Window(model, parts, across_ranks=True)
    for sizes in ([2], [2, 0], [2.0, 2.0]):
        with pytest.raises(BadInput, match=r"^Bad sizes: expected 2 whole numbers above 0"):
            Window(model, parts, sizes=sizes)
    window = Window(model, parts)
    with pytest.raises(BadInput, match=r"^No current micro-batch"):
        window.backward(torch.tensor(1.0))
    with pytest.raises(BadInput, match=r"^No loss: .*got none for number 0"):
        list(window)
    with pytest.raises(BadInput, match=r"^Used window"):
        iter(window)
    window = Window(model, parts)
    for _ in window:
        with pytest.raises(BadInput, match=r"got \(2,\)"):
            window.backward(torch.ones(2))
        with pytest.raises(BadInput, match="got float"):
            window.backward(1.0)
        break


def test_window_scales_for_a_grad_scaler(lone_group):
    """
    A scaler multiplies the weighted loss; unscaled, the gradient is the whole batch's.
    """
    whole, bound = oracle(4)
    model, parts = Toy(), parts_of(0, [[3, 1]])
    with Window(model, parts, sizes=[3, 1], across_ranks=True) as window:
        for inputs, targets in window:
            (window.scale(mean_loss(model, inputs, targets)) * 2**10).backward()
    assert ((gradients(model) / 2**10 - whole).abs() <= bound).all()


# Clipping


def _clip(rank, world_size):
    everyone, own = sized(rank, "unequal", world_size)
    parts = parts_of(rank, everyone)
    model = DistributedDataParallel(Toy())
    run_window(model, parts, sizes=own, across_ranks=True)
    norm = clip_gradients(model.parameters(), 0.5)
    after = gradients(model)

    bare = Toy()  # what clipping before the sync comes to
    run_window(bare, parts, sizes=own, across_ranks=True)
    norm_local = clip_gradients(bare.parameters(), 0.5)
    early = gradients(bare)
    dist.all_reduce(early)

    # Each rank keeps a part of the gradients; a fourth one keeps none.
    sharded = []
    if rank < 3:
        shard = gradients(_whole_model(everyone)).tensor_split(min(3, world_size))[rank]
        sharded = [nn.Parameter(torch.zeros_like(shard))]
        sharded[0].grad = shard
    norm_sharded = clip_gradients(sharded, 0.5, sharded=True)
    return {
        "norm": norm.item(),
        "after": sent(after),
        "norm_local": norm_local.item(),
        "early": sent(early / world_size),
        "norm_sharded": norm_sharded.item(),
        "shard": sent(sharded[0].grad) if sharded else [],
    }


def _whole_model(everyone):
    model = Toy()
    mean_loss(model, *samples(sum(map(sum, everyone)))).backward()
    return model


@pytest.mark.ranks
@pytest.mark.parametrize("world_size", WORLD_SIZES)
def test_clipping_after_the_sync_is_that_of_one_process(world_size):
    """
    All ranks find one norm. Clipped before the sync, each has its own, and the average is wrong.
    """
    everyone = SHARES["unequal"][:world_size]
    whole = _whole_model(everyone)
    norm = nn.utils.clip_grad_norm_(whole.parameters(), 0.5).item()
    expected = gradients(whole)
    results = run_world(world_size, _clip)
    # The norm is a sum of 16 squares of gradients that each carry the rounding of `oracle`.
    _, bound = oracle(sum(map(sum, everyone)))
    rel = (bound.norm() / norm).item() + 16 * EPS
    for result in results:
        assert result["norm"] == pytest.approx(norm, rel=rel)
        # Scaling multiplies the rounding of the gradient and of the norm by 0.5 / norm.
        assert (exactly(result["after"]) - expected).abs().max() <= 2 * rel
        assert result["norm_sharded"] == pytest.approx(norm, rel=rel)
    assert len({result["norm"] for result in results}) == 1
    assert len({result["norm_sharded"] for result in results}) == 1
    whole_again = exactly([number for result in results for number in result["shard"]])
    assert (whole_again - expected).abs().max() <= 2 * rel
    if world_size > 1:
        assert len({result["norm_local"] for result in results}) > 1
        assert (exactly(results[0]["early"]) - expected).abs().max() > 0.01


def test_clip_gradients_equals_torchs_and_leaves_small_ones_alone():
    """
    float32, non-contiguous, empty and missing gradients; and none at all.
    """
    ours = [nn.Parameter(torch.zeros(3, 4)), nn.Parameter(torch.zeros(0))]
    ours += [nn.Parameter(torch.zeros(2))]
    ours[0].grad = torch.arange(12.0).reshape(4, 3).T
    ours[1].grad = torch.zeros(0)
    theirs = [nn.Parameter(p.detach().clone()) for p in ours]
    theirs[0].grad, theirs[1].grad = ours[0].grad.clone(), torch.zeros(0)
    norm = clip_gradients(iter(ours), 2.0)
    expected = nn.utils.clip_grad_norm_(theirs, 2.0)
    # torch adds 12 squares in float32: 12 roundings there, and a few for the scaling.
    eps = torch.finfo(torch.float32).eps
    assert norm.item() == pytest.approx(expected.item(), rel=12 * eps)
    assert torch.allclose(ours[0].grad, theirs[0].grad, rtol=16 * eps, atol=0)
    assert ours[0].grad.dtype == torch.float32
    before = ours[0].grad.clone()
    clip_gradients(ours[0], 1e6)
    assert torch.equal(ours[0].grad, before)
    assert clip_gradients([], 1.0).item() == 0.0
    for wrong in (0.0, -1.0, math.nan):
        with pytest.raises(BadInput, match=r"^Bad norm"):
            clip_gradients(ours, wrong)


def test_clip_gradients_sees_norms_that_float32_cannot_square():
    """
    The square of 1e30 overflows in float32, and that of 1e-30 vanishes.
    """
    for value in (1e30, 1e-30):
        parameter = nn.Parameter(torch.zeros(1))
        parameter.grad = torch.full((1,), value)
        stored = parameter.grad.item()  # as float32 holds it
        # A square and a root, each rounded.
        assert clip_gradients([parameter], 1.0).item() == pytest.approx(stored, rel=2 * EPS)


def test_sharded_clipping_in_a_group_of_one(lone_group):
    """
    The one shard is all there is.
    """
    parameter = nn.Parameter(torch.zeros(2))
    parameter.grad = torch.tensor([3.0, 4.0])
    assert clip_gradients([parameter], 1.0, sharded=True).item() == 5.0


# Rates


def test_effective_batch_and_scaled_rates():
    """
    The figures of Goyal et al.: 0.1 for 256 becomes 3.2 for 8,192.
    """
    assert effective_batch_size(32, 8, 32) == 8192
    assert scaled_learning_rate(0.1, 256, 8192) == pytest.approx(3.2, rel=4 * EPS)
    assert scaled_learning_rate(0.1, 256, 1024, "square root") == 0.2
    assert scaled_learning_rate(0.1, 256, 128) == 0.05
    with pytest.raises(BadInput, match=r"^Bad batch"):
        effective_batch_size(32, 0)
    with pytest.raises(BadInput, match=r"^Bad batch"):
        scaled_learning_rate(0.1, 256, 0)
    with pytest.raises(BadInput, match=r"^Unknown rule: expected linear or square root"):
        scaled_learning_rate(0.1, 256, 512, "cubic")


def test_linear_rule_makes_one_large_step_of_small_ones():
    """
    Where the gradient does not depend on the weights, k small steps and one large one are equal.
    """
    small, large = nn.Linear(3, 1).double(), nn.Linear(3, 1).double()
    large.load_state_dict(small.state_dict())
    inputs, _ = samples(8)
    for model, batch_size in ((small, 2), (large, 8)):
        rate = scaled_learning_rate(0.5, 2, batch_size)
        optimizer = torch.optim.SGD(model.parameters(), lr=rate)
        for batch in inputs.split(batch_size):
            optimizer.zero_grad()
            model(batch).mean().backward()
            optimizer.step()
    # 4 steps, each rounding weights and gradients of at most 12.
    assert (small.weight - large.weight).abs().max() <= 4 * 4 * 12 * EPS


def test_warmup_cosine_climbs_and_falls():
    """
    It follows from the step alone: ranks that count alike agree without a message (C19).
    """
    rates = [warmup_cosine(step, 12, 1.0, 4, final_rate=0.1) for step in range(14)]
    assert rates[:5] == [0.25, 0.5, 0.75, 1.0, 1.0]
    assert rates[8] == pytest.approx(0.55, rel=4 * EPS)
    assert rates[12] == rates[13] == pytest.approx(0.1, rel=4 * EPS)
    assert all(a > b for a, b in itertools.pairwise(rates[4:13]))
    parameter = nn.Parameter(torch.zeros(1))
    optimizer = torch.optim.SGD([{"params": [parameter]}, {"params": []}], lr=1.0)
    set_learning_rate(optimizer, rates[0])
    assert [group["lr"] for group in optimizer.param_groups] == [0.25, 0.25]
    for step, num_steps, warmup in ((-1, 10, 0), (0, 10, 10), (0, 10, -1), (0, 0, 0)):
        with pytest.raises(BadInput, match=r"^Bad schedule"):
            warmup_cosine(step, num_steps, 1.0, warmup)


# Plateau


def _plateau(rank, world_size):
    torch.manual_seed(rank)
    rates = {"ours": [], "local": []}
    means = []
    schedules = {}
    optimizers = {}
    for name in rates:
        optimizers[name] = torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=1.0)
    options = {"factor": 0.5, "patience": 1}
    schedules["ours"] = PlateauSchedule(optimizers["ours"], **options)
    schedules["local"] = ReduceLROnPlateau(optimizers["local"], **options)
    for step in range(12):
        # The last rank has no sample; the others' losses fall for a time that differs by rank.
        num_local = 0 if rank == world_size - 1 and world_size > 1 else rank + 3
        loss = 1.0 / (1 + min(step, 2 * rank + 2)) + 1e-3 * torch.rand(()).item()
        means.append(schedules["ours"].step(loss * num_local, num_local))
        schedules["local"].step(loss)
        for name in rates:
            rates[name].append(optimizers[name].param_groups[0]["lr"])
    resumed = PlateauSchedule(optimizers["ours"], **options)
    resumed.load_state_dict(schedules["ours"].state_dict())
    nothing = ""
    try:
        resumed.step(0.0, 0)
    except BadInput as error:
        nothing = str(error)
    return rates, means, resumed.state_dict() == schedules["ours"].state_dict(), nothing


@pytest.mark.ranks
@pytest.mark.parametrize("world_size", WORLD_SIZES)
def test_plateau_schedule_lowers_the_rate_on_all_ranks_together(world_size):
    """
    Fed with its own metric, each rank lowers its rate when it likes (C19).
    """
    results = run_world(world_size, _plateau)
    rates, means, _, _ = results[0]
    assert rates["ours"][-1] < 1.0
    for own_rates, own_means, is_resumed, nothing in results:
        assert own_rates["ours"] == rates["ours"]
        assert own_means == means, "equal to the last bit"
        assert is_resumed
        assert nothing.startswith("No samples: expected at least one over all ranks")
    if world_size > 1:
        assert any(own["local"] != rates["local"] for own, _, _, _ in results)


def _means(rank, world_size):
    total = [1e16, 1.0, -1e16, 1.0][rank]
    return (
        global_mean(total, rank),
        global_mean(torch.tensor(rank + 1.0), rank + 1),
        global_mean(math.inf if rank == 1 else 1.0, 1),
        global_mean(math.nan if rank == 3 else 1.0, 1),
    )


@pytest.mark.ranks
def test_global_mean_rounds_once():
    """
    Added in any order with a rounding each, 1e16 + 1 - 1e16 + 1 is 0, 1 or 2; and a mean of ranks'
    means would weigh samples unequally. A loss that is not a number must reach every rank.
    """
    for exact, ones, infinite, not_a_number in run_world(4, _means):
        assert exact == 2.0 / 6
        assert ones == 1.0
        assert infinite == math.inf
        assert math.isnan(not_a_number)


def test_schedule_of_a_group_of_one(lone_group):
    """
    A script that was written for many ranks runs on one.
    """
    assert global_mean(3.0, 2) == 1.5
    optimizer = torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=1.0)
    schedule = PlateauSchedule(optimizer, patience=0)
    assert [schedule.step(2.0, 2), schedule.step(4.0, 2)] == [1.0, 2.0]
    assert optimizer.param_groups[0]["lr"] == 0.1
    schedule.load_state_dict(schedule.state_dict())
    assert global_mean(math.inf, 1) == math.inf
    with pytest.raises(BadInput, match=r"rank 0 of 1"):
        schedule.step(0.0, 0)


# Memory


def test_accumulation_saves_activations_and_nothing_else():
    """
    A quarter of the activations; parameters, gradients and optimizer state stay (C17).
    """
    num_bytes = {}
    for num_parts in (1, 4):
        model = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 32), nn.Tanh())
        optimizer = torch.optim.Adam(model.parameters())
        parts = [torch.randn(64 // num_parts, 16) for _ in range(num_parts)]
        with SavedBytes(model) as saved, Window(model, parts) as window:
            for inputs in window:
                window.backward(model(inputs).square().mean())
        optimizer.step()
        num_bytes[num_parts] = saved.peak_bytes, state_bytes(model, optimizer)
    num_parameters = 16 * 32 + 32 + 32 * 32 + 32
    # float32; Adam keeps two numbers for each, and a step count for each of four tensors.
    assert (
        num_bytes[4][1]
        == num_bytes[1][1]
        == {
            "parameters": 4 * num_parameters,
            "gradients": 4 * num_parameters,
            "optimizer": 4 * 2 * num_parameters + 4 * 4,
        }
    )
    # For each sample: the input, ReLU's result, tanh's; the loss's square saves tanh's again.
    # Scalars that the weighing saves do not depend on the batch: 8 bytes each at most.
    per_sample = 4 * (16 + 32 + 32)
    for num_parts, (peak_bytes, _) in num_bytes.items():
        assert 0 <= peak_bytes - 64 // num_parts * per_sample <= 16


def test_saved_bytes_frees_what_backward_has_used():
    """
    Nothing is counted, and nothing lives on, after the graph is gone.
    """
    model = nn.Sequential(nn.Linear(4, 4), nn.Sigmoid())
    with SavedBytes(model) as saved:
        for _ in range(3):
            model(torch.randn(8, 4)).sum().backward()
        first = saved.peak_bytes
        model(torch.randn(8, 4)).sum()
    assert saved.peak_bytes == first == 4 * 8 * (4 + 4)
    assert saved._now_bytes == 0
    assert saved._holders == {}
