"""
The parts of the speed lesson that run on ranks: simulated steps, the agreed straggler, times and
profiles.
"""

import time
from unittest import mock

import pytest
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from worlds import run_world

from ddp_lessons.costs import Link, overlapped_finish_s
from ddp_lessons.errors import BadInput
from ddp_lessons.speed import (
    PlayedStep,
    agree_on_straggler,
    all_reduce_times_s,
    fetched_ahead,
    find_straggler,
    gather_profiles,
    least_step_s,
    predict_step_s,
    profile_steps,
    profile_track,
    slow_all_reduce,
    split_steps,
    step_times_s,
)
from ddp_lessons.trace import merge_profiles, save_profiles

WORLD_SIZES = [1, 2, 3, 4]
LINK = Link(0.002, 24_000_000)  # 2 ms, and 24 kB a millisecond
BACKWARD_S, BUCKET_BYTES = [0.03, 0.02], [120_000, 240_000]
LATE_S = 0.1


def _played(rank, world_size):
    step = PlayedStep(0.01, BACKWARD_S, BUCKET_BYTES, LINK, optimizer_s=0.01)
    dist.barrier()
    first = step.run(late_s=LATE_S if rank == world_size - 1 else 0.0)
    plain = PlayedStep(0.0, [0.0], [12], LINK).run()
    times_s = step_times_s(step.run, 3)
    return first, plain, times_s


@pytest.mark.parametrize("world_size", WORLD_SIZES)
def test_played_step_takes_at_least_what_the_model_says(world_size):
    """
    A sleep never ends early, so the model's time is a lower bound, however busy the machine is.
    """
    seen = run_world(world_size, _played)
    tracks = [first for first, _, _ in seen]
    expected = predict_step_s(world_size, 0.01, BACKWARD_S, BUCKET_BYTES, LINK, 0.01)
    for _, plain, times_s in seen:
        assert min(times_s) >= expected
        assert [span[0] for span in plain] == ["compute"] * 2 + ["communication"] * (world_size > 1)
    splits = split_steps(tracks)
    for split, track in zip(splits, tracks, strict=True):
        labels = [span[3] for span in track]
        talks = ["bucket 1", "bucket 2"] if world_size > 1 else []
        assert labels == ["forward", "backward", "backward", *talks, "optimizer"]
        assert split.compute_s >= 0.07
        assert split.step_s >= expected
    if world_size > 1:
        # The last bucket is sent after backward, whatever delayed backward.
        sent_s = [2 * (world_size - 1) * LINK.message_s(n / world_size) for n in BUCKET_BYTES]
        tail_s = overlapped_finish_s([BACKWARD_S[0], sum(BACKWARD_S)], sent_s) - sum(BACKWARD_S)
        for split in splits[:-1]:
            assert split.communication_s + split.waiting_s >= tail_s


def test_played_step_needs_a_bucket_for_each_part():
    """
    The numbers of buckets and of parts of backward must be equal: a part without a bucket would
    never be sent.
    """
    run_world(1, _refused)


def _refused(rank, world_size):
    with pytest.raises(BadInput, match=r"Bad buckets: .*2 parts of backward .*got 1"):
        PlayedStep(0.0, [0.0, 0.0], [4], LINK)


def _straggling(rank, world_size):
    own_s = [9.0 - rank, *[1.0 + (rank == world_size - 1)] * 3]
    return own_s, agree_on_straggler(own_s), agree_on_straggler([1.0, 1.0])


@pytest.mark.parametrize("world_size", WORLD_SIZES)
def test_all_ranks_agree_on_the_straggler(world_size):
    """
    All ranks name the same straggler. A rank with another opinion would act alone.
    """
    seen = run_world(world_size, _straggling)
    right = find_straggler([own_s for own_s, _, _ in seen])
    assert right == (world_size - 1 if world_size > 1 else None)
    assert [(found, equal) for _, found, equal in seen] == [(right, None)] * world_size


def _timed(rank, world_size):
    sizes = (4, 40_000)
    slow = all_reduce_times_s(sizes, 2, slow_all_reduce(LINK))
    return all_reduce_times_s(sizes, most=2), step_times_s(lambda: time.sleep(0.01), 2), slow


def _interrupted(rank, world_size):
    """
    Make steps of 10 ms on a simulated clock. On the last rank the first ten take longer, each by
    another time.
    """
    made, now_s = [], [0.0]

    def step():
        made.append(0.01 + 0.002 * max(10 - len(made), 0) * (rank == world_size - 1))
        now_s[0] += made[-1]

    def clock():
        return now_s[0]

    with mock.patch("ddp_lessons.speed.measuring.time.perf_counter", clock):
        return least_step_s(step), len(made), least_step_s(step, most=2), len(made)


@pytest.mark.parametrize("world_size", WORLD_SIZES)
def test_steps_are_made_until_the_fastest_agree_everywhere(world_size):
    """
    A rank that was interrupted needs more steps, and the others make as many, until each has five
    undisturbed ones.
    """
    for least_s, num_made, least_of_two_s, num_in_all in run_world(world_size, _interrupted):
        assert (num_made, num_in_all) == (15, 17)
        assert [least_s, least_of_two_s] == pytest.approx([0.01, 0.01])


@pytest.mark.parametrize("world_size", WORLD_SIZES)
def test_times_are_of_every_size_and_step(world_size):
    """
    There is a time for every size and every step. A sleep of 10 ms tests the clock itself.
    """
    for times, steps_s, slow in run_world(world_size, _timed):
        rounds = 2 * (world_size - 1)
        for num_bytes, seconds in slow.items():
            assert seconds >= rounds * LINK.message_s(num_bytes // 4 // world_size * 4)
        assert list(times) == [4, 40_000]
        assert min(times.values()) > 0
        assert len(steps_s) == 2
        assert min(steps_s) >= 0.01


def _profiled(rank, world_size):
    layers = [torch.nn.Linear(512, 512, bias=False) for _ in range(4)]
    model = DistributedDataParallel(torch.nn.Sequential(*layers), bucket_cap_mb=1)
    own = profile_steps(lambda: model(torch.ones(4, 512)).sum().backward(), num_steps=2)
    everyone = gather_profiles(own)
    merged = None if everyone is None else merge_profiles(everyone)
    return profile_track(own), merged, everyone


@pytest.mark.parametrize("world_size", WORLD_SIZES)
def test_profile_of_ddp_shows_each_bucket(world_size, tmp_path):
    """
    4 layers of 1 MiB are 4 buckets in each of 2 steps. A bucket is sent during backward.
    """
    seen = run_world(world_size, _profiled)
    tracks = [track for track, _, _ in seen]
    for track in tracks:
        assert [span[0] for span in track].count("communication") == 8
    for split in split_steps(tracks):
        assert split.compute_s > 0
        assert split.hidden_s > 0
    merged, everyone = seen[0][1:]
    assert all(merged_too is None for _, merged_too, _ in seen[1:])
    entries = [entry for entry in merged["traceEvents"] if entry["ph"] != "M"]
    assert {entry["pid"] for entry in entries} == set(range(world_size))
    assert min(entry["ts"] for entry in entries) == 0
    calls = [entry["pid"] for entry in entries if entry["name"] == "gloo:all_reduce"]
    assert [calls.count(rank) for rank in range(world_size)] == [8] * world_size
    path = save_profiles(tmp_path / "run.json", everyone)
    assert path.read_text().startswith('{"traceEvents": [{"name": "process_name"')


def _track_of(entries, **profile):
    """
    Return the track of a profile with these events: (name, category, start, duration), in
    microseconds.
    """
    keys = ("name", "cat", "ts", "dur")
    events = [{"ph": "X", **dict(zip(keys, entry, strict=True))} for entry in entries]
    return profile_track(profile | {"traceEvents": events})


def test_profile_of_a_gpu_goes_by_its_kernels():
    """
    A GPU's profile uses the times of kernels, because the CPU's calls end long before the GPU has
    finished.
    """
    entries = [
        ("step", "user_annotation", 10, 1),
        ("aten::mm", "cpu_op", 10, 1),
        ("nccl:all_reduce", "user_annotation", 11, 1),
        ("sgemm", "kernel", 12, 5),
        ("ncclDevKernel_AllReduce_Sum_f32_RING_LL", "kernel", 15, 4),
    ]
    found = _track_of(entries, baseTimeNanoseconds=10**9)
    expected = [("compute", 1.000012, 1.000017), ("communication", 1.000015, 1.000019)]
    assert [span[0] for span in found] == [span[0] for span in expected]
    assert [span[1:] for span in found] == [pytest.approx(span[1:]) for span in expected]


def test_profile_of_gloo_on_a_gpu_lists_each_call_once():
    """
    Spans of the CPU in which kernels were started are listed a second time for the GPU. Each call
    counts once.
    """
    entries = [
        ("step", "user_annotation", 10, 9),
        ("step", "gpu_user_annotation", 12, 9),
        ("gloo:all_reduce", "user_annotation", 11, 6),
        ("gloo:all_reduce", "gpu_user_annotation", 13, 1),
        ("sgemm", "kernel", 12, 5),
    ]
    found = _track_of(entries)
    assert [kind for kind, *_ in found] == ["compute", "communication"]


def test_profile_without_steps_is_refused():
    """
    A profile without steps is refused, since its times would include all other work of the process.
    """
    with pytest.raises(BadInput, match="No steps in this profile"):
        profile_track({"traceEvents": []})


def test_batches_are_fetched_ahead_in_order_and_not_too_early():
    """
    The next batch is loaded while one batch is in use, and no further one.
    """
    loaded = []

    def loads():
        for number in range(4):
            loaded.append(number)
            yield number

    seen = []
    for batch in fetched_ahead(loads()):
        seen.append(batch)
        assert len(loaded) <= batch + 2
    assert seen == [0, 1, 2, 3]
    assert list(fetched_ahead([])) == []


def test_an_error_of_loading_reaches_the_loop():
    """
    An error in the loading thread reaches the loop. Otherwise the epoch would end early without an
    error.
    """

    def broken():
        yield 1
        raise OSError("disk")

    batches = fetched_ahead(broken())
    assert next(batches) == 1
    with pytest.raises(OSError, match="disk"):
        next(batches)
