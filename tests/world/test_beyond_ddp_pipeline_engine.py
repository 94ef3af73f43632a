"""
The pipeline engine runs any schedule on real ranks: its gradients, messages, and microbatches
alive.

One process that takes the same microbatches in the same order computes the same sums, so it is
compared to the last bit. A plain step over the whole batch adds in another order. Its sums have at
most N terms each in float64, so they differ by no more than N roundings of the largest gradient for
each of eight layers. With room for the products inside, that is 1e-12 of the gradient.
"""

import warnings

import pytest
import torch
from metric_shards import packed, run_packed
from pipeline_worlds import batch, gradients_of, one_process, stages_of
from torch import nn
from torch.distributed.pipelining import (
    Schedule1F1B,
    ScheduleGPipe,
    ScheduleInterleaved1F1B,
)
from torch.nn.functional import cross_entropy, mse_loss
from worlds import RankFailed, run_world

from ddp_lessons.beyond_ddp.pipeline import (
    KeptSends,
    Pipeline,
    WaitingSends,
    bubble,
    cut,
    gpipe,
    interleaved,
    one_f_one_b,
    timetable,
)
from ddp_lessons.beyond_ddp.pipeline.example import WIDTH_BYTES, TorchsOwn, deep_model, slots_of
from ddp_lessons.costs import bubble_share, pipeline_sent_bytes
from ddp_lessons.errors import BadInput
from ddp_lessons.trace import trace
from ddp_lessons.workloads import digits_batch, load_digits

WORLD_SIZES = [1, 2, 3, 4]
MOST_OFF = 1e-12
SIZES = [(8, 4), (7, 3), (5, 5), (4, 1)]  # samples, microbatches: some do not divide


def _tables(world_size, num_microbatches):
    found = {
        "gpipe": (gpipe(world_size, num_microbatches), 1),
        "1f1b": (one_f_one_b(world_size, num_microbatches), 1),
    }
    if num_microbatches % world_size == 0:
        found["interleaved"] = (interleaved(world_size, num_microbatches, 2), 2)
    return found


def _steps(rank, world_size):
    found = {}
    for num_samples, num_microbatches in SIZES:
        inputs, targets = batch(num_samples)
        for name, (table, num_parts) in _tables(world_size, num_microbatches).items():
            stages = stages_of(rank, world_size, num_parts)
            pipeline = Pipeline(stages, mse_loss)
            loss = pipeline.step(table, num_samples, inputs, targets)
            facts = loss, gradients_of(stages), pipeline.most_alive, pipeline.done == table[rank]
            found[name, num_samples, num_microbatches] = facts
    return packed(found)


@pytest.mark.bitwise
@pytest.mark.parametrize("world_size", WORLD_SIZES)
def test_any_table_makes_the_gradients_of_one_process(world_size):
    """
    Every schedule gives the gradients of one process, also if microbatches are unequal, or if there
    are fewer of them than ranks.
    """
    results = run_packed(world_size, _steps)
    for name, num_samples, num_microbatches in results[0]:
        num_stages = world_size * (2 if name == "interleaved" else 1)
        loss, same_order = one_process(num_samples, num_microbatches, num_stages)
        whole_loss, whole = one_process(num_samples, 1, num_stages)
        for rank, result in enumerate(results):
            got_loss, gradients, _, was_done = result[name, num_samples, num_microbatches]
            assert was_done
            assert (got_loss is None) == (rank != world_size - 1)
            for number, tensors in gradients.items():
                for got, same, plain in zip(
                    tensors, same_order[number], whole[number], strict=True
                ):
                    assert torch.equal(got, same), (name, number)
                    assert (got - plain).abs().max() <= MOST_OFF * plain.abs().max()
        assert torch.allclose(got_loss, loss, rtol=0, atol=MOST_OFF)
        assert torch.allclose(got_loss, whole_loss, rtol=0, atol=MOST_OFF)


def test_microbatches_alive_are_counted_as_the_tables_say():
    """
    The numbers of microbatches alive are counted on real ranks, and equal those in the lesson's
    tables.
    """
    results = run_packed(4, _digits_steps)
    alive = {name: [result[name]["alive"] for result in results] for name in results[0]}
    assert alive["gpipe"] == [4, 4, 4, 4]
    assert alive["1f1b"] == [4, 3, 2, 1]
    assert alive["interleaved"] == [8, 8, 7, 5]


def _digits_steps(rank, world_size):
    images, labels = digits_batch(load_digits(), 32)
    found = {}
    for name, (table, num_parts) in _tables(world_size, 4).items():
        stages = cut(deep_model(seed=0), world_size * num_parts, images)[rank::world_size]
        pipeline = Pipeline(stages, cross_entropy)
        with trace() as events:
            pipeline.step(table, 32, images, labels)
        sent = sum(event.input_bytes for event in events if event.is_send)
        unwaited = sum(e.is_communication and e.wait_index is None for e in events)
        found[name] = {"alive": pipeline.most_alive, "sent": sent, "unwaited": unwaited}
    return packed(found)


@pytest.mark.parametrize("world_size", [1, 2, 4])
def test_bytes_are_as_foretold(world_size):
    """
    The bytes sent are those predicted. They are counted in the trace of real ranks, and every
    handle was waited for.
    """
    results = run_packed(world_size, _digits_steps)
    for name in results[0]:
        num_parts = 2 if name == "interleaved" else 1
        foretold = pipeline_sent_bytes(world_size, 4, 8 * WIDTH_BYTES, num_parts)
        assert [result[name]["sent"] for result in results] == foretold
        assert [result[name]["unwaited"] for result in results] == [0] * world_size


_TORCHS = {
    "gpipe": ScheduleGPipe,
    "1f1b": Schedule1F1B,
    "interleaved": ScheduleInterleaved1F1B,
}


def _beside_torchs(rank, world_size):
    images, labels = digits_batch(load_digits(), 32)
    found = {}
    for name, (table, num_parts) in _tables(world_size, 4).items():
        stages = cut(deep_model(seed=0), world_size * num_parts, images)[rank::world_size]
        pipeline = Pipeline(stages, cross_entropy)
        loss = pipeline.step(table, 32, images, labels)
        ours = gradients_of(stages)
        theirs = cut(deep_model(seed=0), world_size * num_parts, images)[rank::world_size]
        torchs = TorchsOwn(theirs, _TORCHS[name], 4)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            losses = torchs.step(images, labels)
        gradients = gradients_of(theirs)
        assert torchs.done == []
        with trace() as events:
            torchs.step(images, labels)
        sent = sum(event.input_bytes for event in events if event.is_send)
        off = max(
            ((a - b).norm() / b.norm()).item()
            for number in ours
            for a, b in zip(ours[number], gradients[number], strict=True)
        )
        loss_off = (torch.stack(losses).mean() - loss).abs().item() if losses else 0.0
        slots = slots_of(torchs.schedule) if name == "interleaved" else None
        found[name] = torchs.done, table[rank], off, loss_off, sent, slots
    return packed(found)


@pytest.mark.parametrize("world_size", [2, 4])
def test_torchs_own_pipelines_do_the_same(world_size):
    """
    torch's schedules run the same actions in the same order, send the same bytes, and raise no
    warning. Gradients differ in the last digits of float32.

        A gradient is a sum over 32 samples and 4 microbatches, through 8 blocks of 64. The bound,
        1e-5 of its length, is a hundred roundings of 6e-8.
    """
    results = run_packed(world_size, _beside_torchs)
    for name in results[0]:
        rows = [result[name][0] for result in results]
        assert rows == [result[name][1] for result in results]
        for result in results:
            _, _, off, loss_off, _, _ = result[name]
            assert off < 1e-5
            assert loss_off < 1e-5
        num_parts = 2 if name == "interleaved" else 1
        foretold = pipeline_sent_bytes(world_size, 4, 8 * WIDTH_BYTES, num_parts)
        assert [result[name][4] for result in results] == foretold
        share = bubble_share(world_size, 4, num_parts)
        assert bubble(timetable(rows)) == pytest.approx(share, abs=1e-15)


def test_empty_slots_of_torchs_table_are_not_the_bubble():
    """
    Empty slots of torch's table are no measure of the bubble: nearly half of rank 0's slots are
    empty, but the bubble is 27 %.
    """
    slots = run_packed(4, _beside_torchs)[0]["interleaved"][5]
    assert slots[0] == (30, 14)  # nearly half
    assert all(num_empty / num > bubble_share(4, 4, 2) + 0.05 for num, num_empty in slots)


def _waiting(rank, world_size, name):
    inputs, targets = batch(8)
    table = _tables(world_size, 4)[name][0]
    pipeline = Pipeline(stages_of(rank, world_size), mse_loss, WaitingSends)
    pipeline.step(table, 8, inputs, targets)
    return pipeline.most_alive


@pytest.mark.parametrize("world_size", [1, 2, 3])
def test_sends_that_wait_are_enough_for_gpipe(world_size):
    """
    Blocking sends work for GPipe, because messages go in one direction first, and then in the
    other.
    """
    assert run_world(world_size, _waiting, "gpipe") == [4] * world_size


def test_sends_that_wait_never_end_in_1f1b():
    """
    Blocking sends hang in 1F1B, as the simulated player of the table predicts. Here two real ranks
    hang.
    """
    with pytest.raises(RankFailed, match=r"ranks \[0, 1\] of 2 were not done in time"):
        run_world(2, _waiting, "1f1b", timeout_s=6.0)


def _twice(rank, world_size):
    stages = stages_of(rank, world_size)
    inputs, targets = batch(8)
    pipeline = Pipeline(stages, mse_loss, KeptSends)
    for _ in range(2):
        pipeline.step(one_f_one_b(world_size, 4), 8, inputs, targets)
    return packed(gradients_of(stages))


@pytest.mark.bitwise
def test_gradients_add_up_over_steps():
    """
    Two steps without zero_grad make twice the gradient, as backward adds to it; a factor of two is
    exact.
    """
    _, once = one_process(8, 4, 2)
    for result in run_packed(2, _twice):
        for number, tensors in result.items():
            for got, one in zip(tensors, once[number], strict=True):
                assert torch.allclose(got, 2 * one, rtol=MOST_OFF, atol=MOST_OFF)


def _as_on_nccl(rank, world_size):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch.distributed, "get_backend", lambda group=None: "nccl")
        pipeline = Pipeline(stages_of(rank, world_size), mse_loss)
    inputs, targets = batch(8)
    with trace() as events:
        pipeline.step(one_f_one_b(world_size, 4), 8, inputs, targets)
    return [event.group for event in events if event.is_send]


def test_a_group_without_tags_gets_another_for_its_messages():
    """
    On NCCL, which has no tags, forward and backward messages would wait for each other, so they get
    another group. Here Gloo pretends to be NCCL.
    """
    own = [name for names in run_world(2, _as_on_nccl) for name in names]
    usual = [name for names in run_world(2, _usual_group) for name in names]
    assert len(own) == len(usual) == 8
    assert not set(own) & set(usual)


def _usual_group(rank, world_size):
    inputs, targets = batch(8)
    with trace() as events:
        pipeline = Pipeline(stages_of(rank, world_size), mse_loss)
        pipeline.step(one_f_one_b(world_size, 4), 8, inputs, targets)
    return [event.group for event in events if event.is_send]


def _refusals(rank, world_size):
    stages, (inputs, targets) = stages_of(rank, world_size), batch(8)
    pipeline = Pipeline(stages, mse_loss)
    table = gpipe(world_size, 4)
    said = []
    for arguments in (
        (table[:1], 8, inputs, targets),
        (gpipe(world_size, 9), 8, inputs, targets),
        ([[] for _ in table], 8, inputs, targets),
        (table, 8, inputs[:4] if rank == 0 else None, None),
        ([[*row, ("B", 0)] for row in table], 8, inputs, targets),
    ):
        with pytest.raises(BadInput) as caught:
            pipeline.step(*arguments)
        said.append(str(caught.value))
    with pytest.raises(BadInput, match="Not its stages"):
        Pipeline([], mse_loss)
    with pytest.raises(BadInput, match="Not its stages"):
        Pipeline(stages_of(world_size - 1 - rank, world_size), mse_loss)
    return said


def test_bad_steps_are_refused_before_a_message_is_sent():
    """
    A bad step is refused on both ranks, because a rank that went on would wait for ever.
    """
    first, last = run_world(2, _refusals)
    assert "1 rows, 4 microbatches and 8 samples" in first[0]
    assert "9 microbatches" in first[1]
    assert "0 microbatches" in first[2]
    assert "Bad inputs: expected those of 8 samples (got 4, rank 0 of 2)" in first[3]
    assert "Bad targets: expected those of 8 samples (got none, rank 1 of 2)" in last[3]
    assert "Rank 0 does B0 twice" in first[4]
    assert first[4] == last[4]


def test_a_model_is_cut_into_as_many_layers():
    """
    The input shape of each stage is found without running the model, and a stage holds the model's
    own layers.
    """
    model = deep_model(seed=0)
    stages = cut(model, 3, torch.zeros(5, 64))
    assert [len(stage.module) for stage in stages] == [3, 3, 2]
    assert [tuple(stage.shape) for stage in stages] == [(64,), (64,), (64,)]
    assert stages[2].module[1] is model[7]
    normed = nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3), nn.Linear(3, 2))
    stages = cut(normed, 3, torch.zeros(1, 4))
    assert [tuple(stage.shape) for stage in stages] == [(4,), (3,), (3,)]
    assert normed[1].training
    assert normed[1].num_batches_tracked == 0
    for bad, num_stages in ((model, 9), (model, 0), (nn.Linear(2, 2), 1)):
        with pytest.raises(BadInput, match="No such cut"):
            cut(bad, num_stages, torch.zeros(1, 64))
