"""
What torch's DDP does, seen from inside, and the hooks that make its messages smaller.
"""

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import powerSGD_hook as power_sgd
from torch.nn.parallel import DistributedDataParallel
from worlds import run_world

from ddp_lessons.ddp import (
    Bucket,
    BucketRecorder,
    ExactState,
    HalfPrecisionState,
    HookMeter,
    Overlap,
    TopKState,
    buckets_before_rebuild,
    buffer_spread,
    exact_hook,
    half_precision_hook,
    overlap,
    parameter_bytes,
    pool_batch_norm,
    ready_order,
    rebuilt_buckets,
    top_k_hook,
    unused_by_rank,
    unused_parameters,
)
from ddp_lessons.errors import BadInput

WORLD_SIZES = [1, 2, 3, 4]
EPS = torch.finfo(torch.float32).eps
BF16_ROUNDOFF = torch.finfo(torch.bfloat16).eps / 2


class Backwards(nn.Module):
    """
    Registers its layers in the order in which their gradients become ready, not that of use.
    """

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.last = nn.Linear(8, 3)
        self.first = nn.Linear(5, 8)
        self.first.bias.requires_grad_(False)

    def forward(self, x):
        return self.last(torch.tanh(self.first(x)))


def shard(rank, step=0, num_samples=4, width=5):
    """
    Return the samples of a rank: other numbers on every rank and step.
    """
    generator = torch.Generator().manual_seed(1000 * step + rank)
    return torch.randn(num_samples, width, generator=generator)


# The reducer


def _records(rank, world_size):
    model = DistributedDataParallel(Backwards(), bucket_cap_mb=100 / 2**20)
    model._set_ddp_runtime_logging_sample_rate(1)
    before = buckets_before_rebuild(model)
    recorder = BucketRecorder(model)
    with pytest.raises(BadInput) as refused:
        rebuilt_buckets(model)
    for step in range(3):
        model(shard(rank, step)).sum().backward()
    return before, recorder.steps, rebuilt_buckets(model), ready_order(model), str(refused.value)


@pytest.mark.ranks
@pytest.mark.parametrize("world_size", WORLD_SIZES)
def test_bucket_recorder_sees_buckets_rebuilt_in_the_order_of_gradients(world_size):
    """
    The first step sends one bucket; later ones follow the order seen, not that of registration.
    """
    for before, steps, rebuilt, order, refused in run_world(world_size, _records):
        assert before == [4 * (24 + 3 + 40)]
        assert [len(step) for step in steps] == [1, 2, 2]
        assert steps[0][0].names == ("last.weight", "last.bias", "first.weight")
        assert steps[0][0].num_bytes == before[0]
        assert order == ["last.bias", "last.weight", "first.weight"]
        assert rebuilt == [
            Bucket(0, ("last.bias", "last.weight"), 27, 108),
            Bucket(1, ("first.weight",), 40, 160),
        ]
        assert list(steps[1]) == list(steps[2]) == rebuilt
        assert refused == (
            "Buckets not rebuilt: DDP must have begun its second forward "
            "(got 0 finished). Run two steps first."
        )


def _keeps_buckets(rank, world_size):
    model = DistributedDataParallel(
        Backwards(), bucket_cap_mb=100 / 2**20, find_unused_parameters=True
    )
    before, recorder = buckets_before_rebuild(model), BucketRecorder(model)
    for step in range(2):
        model(shard(rank, step)).sum().backward()
    with pytest.raises(BadInput) as refused:
        rebuilt_buckets(model)
    return before, [[bucket.names for bucket in step] for step in recorder.steps], refused.value


@pytest.mark.ranks
def test_ddp_keeps_its_buckets_if_it_looks_for_unused_parameters():
    """
    The order of gradients may change with every step, so that no order is better than the first.
    """
    for before, steps, refused in run_world(2, _keeps_buckets):
        assert before == [4 * 40, 4 * (3 + 24)]
        assert steps == [[("first.weight",), ("last.weight", "last.bias")]] * 2
        assert str(refused) == (
            "Buckets never rebuilt: DDP must not look for unused parameters "
            "(got find_unused_parameters=True). Use a BucketRecorder."
        )


def _overlap(rank, world_size):
    layers = [nn.Linear(64, 64) for _ in range(6)]
    model = DistributedDataParallel(nn.Sequential(*layers), bucket_cap_mb=1 / 2**20)
    model._set_ddp_runtime_logging_sample_rate(1)
    before = overlap(model)
    for step in range(4):
        model(shard(rank, step, width=64)).sum().backward()
    return before, overlap(model)


@pytest.mark.ranks
def test_overlap_is_what_backward_hides_of_communication():
    """
    With a bucket a parameter the first is sent before the last gradient is ready.
    """
    for before, after in run_world(2, _overlap):
        assert before == Overlap(0.0, 0.0, 0.0)
        assert before.share == 0.0
        assert 0 < after.overlap_s <= min(after.backward_s, after.communication_s)
        assert 0 < after.share <= 1


def _bytes(rank, world_size):
    model = nn.Sequential(nn.Linear(5, 5), nn.Linear(5, 5))
    model[1].weight = model[0].weight
    return parameter_bytes(model), parameter_bytes(DistributedDataParallel(model))


@pytest.mark.ranks
@pytest.mark.parametrize("world_size", [1, 2, 4])
def test_parameter_bytes_of_ddp_do_not_fall_with_ranks(world_size):
    """
    C13: DDP replicates; it does not split the model. A tied weight counts once.
    """
    assert run_world(world_size, _bytes) == [(4 * (25 + 5 + 5),) * 2] * world_size


# Unused parameters


class Forked(nn.Module):
    """
    Takes one of two branches; ties a weight of one to the trunk; never uses `spare`.
    """

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.trunk = nn.Linear(5, 5)
        self.left = nn.Linear(5, 5)
        self.right = nn.Linear(5, 5)
        self.right.weight = self.trunk.weight
        self.spare = nn.Parameter(torch.ones(2))
        self.frozen = nn.Parameter(torch.ones(2), requires_grad=False)

    def forward(self, x, branch):
        hidden = self.trunk(x)
        return {"out": getattr(self, branch)(hidden), "aux": [hidden, None, 3]}


def test_unused_parameters_names_what_backward_would_not_reach():
    """
    The names are those whose gradient is None after backward, neither frozen nor tied ones.
    """
    model = Forked()
    outputs = model(shard(0), "right")
    assert unused_parameters(model, outputs) == ["spare", "left.weight", "left.bias"]
    assert unused_parameters(model, outputs["aux"]) == [
        "spare",
        "left.weight",
        "left.bias",
        "right.bias",
    ]
    assert unused_parameters(model, model.spare)[-1] == "right.bias", "an output may be a parameter"
    outputs["out"].sum().backward()
    without = [name for name, p in model.named_parameters() if p.requires_grad and p.grad is None]
    assert unused_parameters(model, model(shard(0), "right")) == without


def _unused_by_rank(rank, world_size):
    model = Forked()
    return unused_by_rank(model, model(shard(rank), "left" if rank == 1 else "right"))


@pytest.mark.ranks
def test_unused_by_rank_says_who_leaves_out_what():
    """
    A branch that one rank takes is no mistake of the model; the cure is another.
    """
    expected = {
        "left.weight": [0, 2], "left.bias": [0, 2], "right.bias": [1], "spare": [0, 1, 2],
    }  # fmt: skip
    assert run_world(3, _unused_by_rank) == [expected] * 3


def _ddp_and_unused(rank, world_size):
    strict = DistributedDataParallel(Forked())
    strict(shard(rank), "left")["out"].sum().backward()
    with pytest.raises(RuntimeError) as refused:
        strict(shard(rank), "left")
    patient = DistributedDataParallel(Forked(), find_unused_parameters=True)
    for _ in range(2):
        patient(shard(rank), "left")["out"].sum().backward()
    unused = unused_parameters(patient.module, patient.module(shard(rank), "left"))
    grads = {name: p.grad for name, p in patient.module.named_parameters()}
    return str(refused.value), all(grads[name] is None for name in unused), unused


@pytest.mark.ranks
def test_ddp_refuses_unused_parameters_unless_told_to_find_them():
    """
    DDP says so one forward late, and by number; the graph says it before, and by name.
    """
    for refused, left_alone, unused in run_world(2, _ddp_and_unused):
        assert "Expected to have finished reduction in the prior iteration" in refused
        assert left_alone
        assert unused == ["spare", "right.bias"]


# Hooks


def _net(seed=0):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(5, 8), nn.Tanh(), nn.Linear(8, 3))


def _metered(rank, world_size):
    seen = {}
    states = {
        "exact": (exact_hook, ExactState()),
        "bf16": (half_precision_hook, HalfPrecisionState()),
        "fp16": (half_precision_hook, HalfPrecisionState(dtype=torch.float16)),
        "top-k": (top_k_hook, TopKState(share=0.25)),
        "top-k, all": (top_k_hook, TopKState(share=1.0)),
    }
    for name, (hook, state) in states.items():
        model = DistributedDataParallel(_net(), bucket_cap_mb=100 / 2**20)
        meter = HookMeter(model, hook, state)
        assert meter.relative_error == 0.0
        for step in range(3):
            model(shard(rank, step)).square().sum().backward()
            weights = [parameter.grad.clone() for parameter in model.parameters()]
            for weight in weights:
                dist.broadcast(weight, src=0)
            assert all(
                torch.equal(weight, p.grad)
                for weight, p in zip(weights, model.parameters(), strict=True)
            ), "replicas drift apart"
        seen[name] = (meter.exact_bytes, meter.bytes_sent, meter.relative_error)
    return seen


@pytest.mark.ranks
@pytest.mark.parametrize("world_size", WORLD_SIZES)
def test_hooks_send_less_and_say_what_it_costs(world_size):
    """
    Bytes are exact; the errors lie within what rounding allows, and gradients are alike everywhere.
    """
    num_elements = 40 + 8 + 24 + 3
    # After the first step two buckets: 3 + 24 floats reach 100 bytes, then 8 + 40.
    num_picked = 19 + 2 * (7 + 12)  # a quarter of 75, of 27 and of 48, rounded up
    for seen in run_world(world_size, _metered):
        assert [exact for exact, _, _ in seen.values()] == [3 * 4 * num_elements] * 5
        assert {name: sent for name, (_, sent, _) in seen.items()} == {
            "exact": 3 * 4 * num_elements,
            "bf16": 3 * 2 * num_elements,
            "fp16": 3 * 2 * num_elements,
            "top-k": (4 + 4) * num_picked,
            "top-k, all": 3 * (4 + 4) * num_elements,
        }
        error = {name: relative for name, (_, _, relative) in seen.items()}
        assert error["exact"] <= EPS, "a division and a multiplication by 1 / w differ by one unit"
        # Adding up in rank order or in a ring's: w - 1 roundings of each, and opposite signs.
        assert error["top-k, all"] <= 16 * world_size * EPS
        # One rounding before the message, w - 1 in it, and the last step's residual; 16 leaves
        # room for gradients of opposite signs, whose mean is smaller than its terms.
        assert 0 < error["bf16"] <= 16 * (world_size + 1) * BF16_ROUNDOFF
        assert 0 < error["fp16"] <= 16 * (world_size + 1) * 2**-11
        assert error["fp16"] < error["bf16"] < error["top-k"]


def _feedback(rank, world_size, error_feedback):
    """
    Send one gradient of thirds over and over, in bfloat16; return how far the sum is off.
    """
    num_steps = 64
    torch.manual_seed(0)
    model = DistributedDataParallel(
        nn.Sequential(nn.Linear(3, 1, bias=False), nn.Linear(1, 1)), bucket_cap_mb=1 / 2**20
    )
    state = HalfPrecisionState(error_feedback=error_feedback)
    model.register_comm_hook(state, half_precision_hook)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.fill_(1.0)
    total = torch.zeros(1, 3, dtype=torch.float64)
    for _ in range(num_steps):
        model.zero_grad()
        model(torch.full((1, 3), 1 / 3)).sum().backward()
        total += model.module[0].weight.grad.double()
    exact = num_steps * torch.tensor(1 / 3, dtype=torch.float32).double()
    return ((total - exact).abs().max() / (1 / 3)).item()


@pytest.mark.ranks
@pytest.mark.parametrize("world_size", [1, 2])
def test_error_feedback_keeps_errors_from_adding_up(world_size):
    """
    Without feedback 64 equal roundings add up; with it one residual is all that is ever missing.

    Also from the first step to the second, where DDP rebuilds its buckets. All ranks send the same,
    so that two halves add up without rounding.
    """
    # At most: one residual, half a unit of bfloat16; and 64 steps' sums in float32 on the way.
    bound = BF16_ROUNDOFF + 2 * 64 * EPS
    assert max(run_world(world_size, _feedback, True)) <= bound
    assert min(run_world(world_size, _feedback, False)) > 20 * bound


def _top_k_in_turns(rank, world_size, error_feedback):
    """
    Send the gradient (8, 5, 3, 2) eight times, one element each time; return the sum.
    """
    model = DistributedDataParallel(nn.Linear(4, 1, bias=False))
    model.register_comm_hook(TopKState(error_feedback=error_feedback, share=0.25), top_k_hook)
    total = torch.zeros(1, 4)
    for _ in range(8):
        model.zero_grad()
        model(torch.tensor([[8.0, 5.0, 3.0, 2.0]])).sum().backward()
        total += model.module.weight.grad
    return total[0].tolist()


@pytest.mark.ranks
@pytest.mark.parametrize("world_size", [1, 2, 4])
def test_top_k_reaches_every_element_only_with_feedback(world_size):
    """
    What is never the largest would never be learned; with feedback it waits until it is.

    Worked out by hand: elements 0, 1, 0, 2, 0, 1, 0, 3 are sent, as 8, 10, 16, 12, 16, 20, 16, 16.
    """
    with_feedback = run_world(world_size, _top_k_in_turns, True)
    assert with_feedback == [[56.0, 30.0, 12.0, 16.0]] * world_size
    without = run_world(world_size, _top_k_in_turns, False)
    assert without == [[64.0, 0.0, 0.0, 0.0]] * world_size


def _power_sgd(rank, world_size):
    torch.manual_seed(0)
    model = DistributedDataParallel(nn.Linear(40, 30, bias=False))
    state = power_sgd.PowerSGDState(
        None, matrix_approximation_rank=world_size, start_powerSGD_iter=2, min_compression_rate=1
    )
    meter = HookMeter(model, power_sgd.powerSGD_hook, state)
    for step in range(3):  # DDP rebuilds its buckets after the first; torch's hook waits for that
        model.zero_grad()
        model(shard(rank, step, num_samples=1, width=40)).square().sum().backward()
    return meter.exact_bytes, meter.bytes_sent, meter.relative_error


@pytest.mark.ranks
@pytest.mark.parametrize("world_size", [1, 2])
def test_hook_meter_measures_torchs_power_sgd(world_size):
    """
    One sample a rank makes a gradient of rank w, which PowerSGD of rank w sends without loss.
    """
    for exact_bytes, sent_bytes, error in run_world(world_size, _power_sgd):
        assert exact_bytes == 3 * 4 * 1200
        assert sent_bytes == 4 * world_size * (40 + 30), "P and Q, in the third step alone"
        # Products of 40 and 30 terms, an orthogonalisation of columns that are not parallel.
        assert error <= 40 * 30 * EPS


@pytest.mark.parametrize("dtype", [torch.float32, torch.int8])
def test_half_precision_refuses_other_dtypes(dtype):
    """
    Half of nothing is not half.
    """
    with pytest.raises(BadInput, match=r"^Bad dtype: it must be bfloat16 or float16 \(got torch"):
        HalfPrecisionState(dtype=dtype)


@pytest.mark.parametrize("share", [0, -0.5, 1.5, float("nan")])
def test_top_k_refuses_a_share_that_is_none(share):
    """
    Nothing sent is nothing learned.
    """
    with pytest.raises(BadInput, match=r"^Bad share: it must be more than 0 and at most 1 \(got "):
        TopKState(share=share)


# Buffers


def _whole_batch_statistics(rank, world_size, num_samples):
    shards = [100 + shard(r, num_samples=n).double() for r, n in enumerate(num_samples)]
    alone, ours = nn.BatchNorm1d(5, momentum=1.0), nn.BatchNorm1d(5, momentum=1.0)
    ours = nn.Sequential(ours, nn.BatchNorm1d(5, track_running_stats=False)).double()
    alone.double()(torch.cat(shards))
    ours[0](shards[rank])
    spread = buffer_spread(ours)
    pool_batch_norm(ours, len(shards[rank]))
    return (
        spread,
        buffer_spread(ours),
        ((ours[0].running_mean - alone.running_mean).abs() / 100).max().item(),
        ((ours[0].running_var - alone.running_var).abs() / alone.running_var).max().item(),
    )


@pytest.mark.ranks
@pytest.mark.parametrize("num_samples", [(6,), (4, 4), (2, 7), (3, 5, 4), (2, 2, 9, 4)])
def test_pool_batch_norm_equals_one_process_on_the_whole_batch(num_samples):
    """
    After one batch with momentum 1, pooled statistics are those of all samples, far from zero too.
    """
    eps = torch.finfo(torch.float64).eps
    for before, after, mean_error, variance_error in run_world(
        len(num_samples), _whole_batch_statistics, num_samples
    ):
        assert (before["0.running_mean"] > 0) == (len(num_samples) > 1)
        assert before["0.num_batches_tracked"] == 0.0
        assert set(after.values()) == {0.0}
        num_roundings = sum(num_samples) + len(num_samples) + 10
        assert mean_error <= num_roundings * eps
        # Deviations near 1 of values near 100: what is rounded off a value counts 100 times.
        assert variance_error <= 2 * 100 * num_roundings * eps


def _too_few(rank, world_size):
    with pytest.raises(BadInput) as refused:
        pool_batch_norm(nn.BatchNorm1d(3), 1 if rank == 1 else 5)
    return str(refused.value)


@pytest.mark.ranks
def test_pool_batch_norm_refuses_one_value_on_every_rank():
    """
    One value has no variance; all ranks hear of it, or the others would wait.
    """
    message = (
        "Too few values: every channel needs 2 or more to have a variance "
        "(got 1, rank 1 of 2). Use a larger shard."
    )
    assert run_world(2, _too_few) == [message] * 2


def _buffers_of_ddp(rank, world_size, broadcast):
    model = DistributedDataParallel(nn.BatchNorm1d(5, momentum=0.5), broadcast_buffers=broadcast)
    for _ in range(20):
        model(shard(0) + 10.0 * rank).sum().backward()  # rank r sees values around 10 * r
    model.eval()
    with torch.no_grad():
        model(shard(0))
    after = buffer_spread(model.module)["running_mean"]
    middle = model.module.running_mean.mean().item()
    pool_batch_norm(model.module, 4)
    return after, middle, model.module.running_mean.mean().item(), hasattr(model, "sync_buffers")


@pytest.mark.ranks
def test_ddp_broadcasts_rank_0s_statistics_and_no_one_elses():
    """
    C14: there is no sync_buffers; forward copies rank 0's buffers, so other shards are forgotten.

    Kept apart and pooled they are not: the values lie around 5, the middle of 0 and 10. After 20
    batches with momentum 0.5, what the first statistics count is 2**-20, of 10 at most.
    """
    offset = shard(0).mean().item()
    for after, middle, _, has_method in run_world(2, _buffers_of_ddp, True):
        assert not has_method
        assert after == 0.0
        assert middle == pytest.approx(offset, abs=1e-4)
    apart = run_world(2, _buffers_of_ddp, False)
    for rank, (after, middle, pooled, _) in enumerate(apart):
        assert after == pytest.approx(10, abs=1e-4)
        assert middle == pytest.approx(offset + 10 * rank, abs=1e-4)
        assert pooled == pytest.approx(offset + 5, abs=1e-4)


# Claims of popular guides


def _drift(rank, world_size, wrapper):
    model = wrapper(_net())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    loss = model(shard(rank)).square().sum()
    loss.backward()
    optimizer.step()
    weight = model.module[0].weight.detach().clone()
    dist.broadcast(weight, src=0)
    return torch.equal(weight, model.module[0].weight)


@pytest.mark.ranks
def test_data_parallel_in_a_group_drifts_apart():
    """
    C09: DataParallel knows nothing of the group: weights differ after one step. DDP's do not.
    """
    assert run_world(2, _drift, nn.DataParallel) == [True, False]
    assert run_world(2, _drift, DistributedDataParallel) == [True, True]


def test_data_parallel_without_gpus_is_the_module_itself():
    """
    C29: it splits a batch over the GPUs of one process; without GPUs it is one process, no more.
    """
    if torch.cuda.is_available():
        pytest.skip("this is about machines without a GPU")
    seen = []
    module = nn.Linear(5, 5)
    module.register_forward_pre_hook(lambda _, inputs: seen.append(len(inputs[0])))
    model = nn.DataParallel(module)
    assert model.device_ids == []
    model(shard(0, num_samples=8))
    assert seen == [8]


def _reduce_the_loss(rank, world_size):
    model = nn.Linear(1, 1, bias=False)
    nn.init.constant_(model.weight, 2.0)
    loss = model(torch.tensor([[4.0 * (rank + 1)]])).sum()
    loss.backward()
    before = model.weight.grad.item()
    reduced = loss.detach().clone()
    dist.reduce(reduced, dst=0)
    return before, model.weight.grad.item(), loss.item(), reduced.item()


@pytest.mark.ranks
def test_reducing_the_loss_does_not_synchronise_gradients():
    """
    C11: gradients stay each rank's own; rank 0's loss becomes a sum.
    """
    seen = run_world(2, _reduce_the_loss)
    assert [grads[:2] for grads in seen] == [(4.0, 4.0), (8.0, 8.0)]
    assert [loss for _, _, loss, _ in seen] == [8.0, 16.0]
    assert seen[0][3] == 24.0
