"""
Placement of ranks on made-up machines: every case of `choose_placement`, and two rules that hold on
all machines.
"""

from collections import Counter

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from ddp_lessons.errors import BadInput
from ddp_lessons.ranks.system.placement import (
    BYTES_PER_RANK,
    MAX_RANKS_PER_CORE,
    MachineResources,
    choose_placement,
)

GIB = 1 << 30
LAPTOP = MachineResources(num_cores=8, num_gpus=0, memory_bytes=16 * GIB)
ONE_GPU = MachineResources(num_cores=8, num_gpus=1, memory_bytes=16 * GIB)
SERVER = MachineResources(num_cores=64, num_gpus=4, memory_bytes=512 * GIB)
OWN_BUILD = MachineResources(num_cores=64, num_gpus=4, memory_bytes=512 * GIB, has_nccl=False)

machines = st.builds(
    MachineResources,
    num_cores=st.integers(1, 256),
    num_gpus=st.integers(0, 16),
    memory_bytes=st.integers(0, 1 << 42),
    has_nccl=st.booleans(),
)


@pytest.mark.parametrize(
    ("num_ranks", "device", "machine", "devices", "backend", "threads", "said"),
    [
        (None, "auto", LAPTOP, ["cpu"] * 4, "gloo", 2, "8 cores, no GPU"),
        (3, "cpu", LAPTOP, ["cpu"] * 3, "gloo", 2, "8 cores, no GPU"),
        (8, "cpu", LAPTOP, ["cpu"] * 8, "gloo", 1, "8 cores, no GPU"),
        (9, "cpu", LAPTOP, ["cpu"] * 9, "gloo", 1, "8 cores, no GPU"),
        (2, "cpu", SERVER, ["cpu"] * 2, "gloo", 32, "64 cores, device='cpu'"),
        (None, "cpu", SERVER, ["cpu"] * 4, "gloo", 16, "64 cores, device='cpu'"),
        (None, "auto", ONE_GPU, ["cuda:0"], "nccl", 8, "1 GPU, one each"),
        (None, "cuda", SERVER, [f"cuda:{i}" for i in range(4)], "nccl", 16, "4 GPUs, one each"),
        (3, "auto", SERVER, ["cuda:0", "cuda:1", "cuda:2"], "nccl", 21, "4 GPUs, one each"),
        (2, "cuda", ONE_GPU, ["cuda:0"] * 2, "gloo", 4, "1 GPU shared by 2 ranks"),
        (
            6,
            "auto",
            SERVER,
            ["cuda:0", "cuda:1", "cuda:2", "cuda:3", "cuda:0", "cuda:1"],
            "gloo",
            10,
            "4 GPUs shared by 6 ranks",
        ),
        (2, "auto", OWN_BUILD, ["cuda:0", "cuda:1"], "gloo", 32, "4 GPUs, this torch has no NCCL"),
    ],
)
def test_place_takes_every_branch(num_ranks, device, machine, devices, backend, threads, said):
    """
    Each case gives the right devices, backend and threads, and the exact reason that start_ranks
    prints.
    """
    placement = choose_placement(num_ranks, device, machine)
    assert list(placement.devices) == devices
    assert placement.world_size == len(devices)
    assert placement.backend == backend
    assert placement.num_threads == threads
    assert placement.reason == said


@given(st.integers(1, 64) | st.none(), st.sampled_from(["auto", "cpu", "cuda"]), machines)
def test_place_never_gives_nccl_a_shared_gpu(num_ranks, device, machine):
    """
    NCCL never gets two ranks on one GPU, which it refuses or hangs on, and no rank is placed on a
    missing GPU.
    """
    try:
        placement = choose_placement(num_ranks, device, machine)
    except BadInput:
        return
    if placement.backend == "nccl":
        assert machine.has_nccl
        assert "cpu" not in placement.devices
        assert max(Counter(placement.devices).values()) == 1
    for name in set(placement.devices) - {"cpu"}:
        assert int(name.removeprefix("cuda:")) < machine.num_gpus
    assert len({name.partition(":")[0] for name in placement.devices}) == 1


@given(st.integers(1, 64) | st.none(), st.sampled_from(["auto", "cpu", "cuda"]), machines)
def test_place_divides_the_cores(num_ranks, device, machine):
    """
    The ranks together have at most as many threads as there are cores, because more would slow
    every rank. Each rank has at least one.
    """
    try:
        placement = choose_placement(num_ranks, device, machine)
    except BadInput:
        return
    threads = placement.num_threads * placement.world_size
    assert threads <= max(machine.num_cores, placement.world_size)
    assert placement.num_threads >= 1
    assert num_ranks in (None, placement.world_size)


@pytest.mark.parametrize("four", [np.int64(4), torch.tensor(4)])
def test_place_takes_whole_numbers_of_other_libraries(four):
    """
    Whole numbers of NumPy and torch are accepted.
    """
    assert choose_placement(four, "cpu", LAPTOP) == choose_placement(4, "cpu", LAPTOP)


@pytest.mark.parametrize("num_ranks", [0, -1, True, False, 2.5, 4.0, "4", [4]])
def test_place_refuses_what_is_no_count(num_ranks):
    """
    A value that is no number of ranks is refused with one clear sentence: True is an int to Python,
    and "4" looks like one to a learner.
    """
    with pytest.raises(BadInput) as caught:
        choose_placement(num_ranks, "auto", LAPTOP)
    assert str(caught.value) == (
        f"Wrong number of ranks: expected a whole number from 1 (got {num_ranks!r}). "
        "Try start_ranks(4)."
    )


@pytest.mark.parametrize(
    ("cores", "memory_bytes", "most"),
    [
        (2, 512 * GIB, 2 * MAX_RANKS_PER_CORE),  # the cores limit the number
        (64, 10 * BYTES_PER_RANK, 10),  # the memory limits it
        (64, 3 * BYTES_PER_RANK - 1, 2),
        (1, 0, 1),  # one rank is always allowed
    ],
)
def test_place_refuses_more_than_the_machine_holds(cores, memory_bytes, most):
    """
    More ranks than the machine holds are refused, because a thousand would take down the machine
    and the learner's notebook.
    """
    machine = MachineResources(num_cores=cores, num_gpus=0, memory_bytes=memory_bytes)
    assert choose_placement(most, "auto", machine).world_size == most
    for too_many in (most + 1, 10**6):
        with pytest.raises(BadInput) as caught:
            choose_placement(too_many, "auto", machine)
        assert str(caught.value) == (
            f"Too many ranks: this machine can hold {most} (got {too_many}). "
            f"Try start_ranks({min(4, most)})."
        )


def test_place_refuses_a_default_that_does_not_fit():
    """
    If the default of 4 ranks does not fit, the message says so and names a number that fits,
    because start_ranks() names none.
    """
    machine = MachineResources(num_cores=4, num_gpus=0, memory_bytes=2 * BYTES_PER_RANK)
    with pytest.raises(BadInput, match=r"can hold 2 \(got 4\)\. Try start_ranks\(2\)\."):
        choose_placement(None, "auto", machine)


@pytest.mark.parametrize("device", ["gpu", "cuda:0", "CPU", "", None, 0])
def test_place_refuses_an_unknown_device(device):
    """
    An unknown device is refused with a message that lists the known ones.
    """
    with pytest.raises(BadInput) as caught:
        choose_placement(2, device, SERVER)
    assert str(caught.value) == (
        f'Unknown device: expected "auto", "cpu" or "cuda" (got {device!r}). '
        "Leave device out to have one chosen."
    )


@pytest.mark.parametrize("num_ranks", [None, 1, 4])
def test_place_refuses_cuda_without_a_gpu(num_ranks):
    """
    `device="cuda"` without a GPU is refused instead of using the CPU silently. The message names
    the doctor, which shows the cause.
    """
    with pytest.raises(BadInput) as caught:
        choose_placement(num_ranks, "cuda", LAPTOP)
    assert str(caught.value) == (
        'No GPU for device="cuda": torch must see at least one (got 0). '
        'Run "ddp-lessons doctor" to see why, or leave device out to use the CPU.'
    )


def test_bad_input_is_a_value_error():
    """
    BadInput is a ValueError, so that code which catches ValueError works.
    """
    with pytest.raises(ValueError, match="Wrong number of ranks"):
        choose_placement(0, "auto", LAPTOP)


@pytest.mark.parametrize(
    ("num_ranks", "device", "machine", "line"),
    [
        (4, "auto", LAPTOP, "cpu, gloo, 2 threads each (8 cores, no GPU)"),
        (8, "auto", LAPTOP, "cpu, gloo, 1 thread each (8 cores, no GPU)"),
        (4, "auto", SERVER, "cuda, nccl, 16 threads each (4 GPUs, one each)"),
    ],
)
def test_placement_reads_as_one_line(num_ranks, device, machine, line):
    """
    A placement reads as one line, the second half of "4 ranks ready: ...". GPU numbers are only in
    ranks.status().
    """
    assert str(choose_placement(num_ranks, device, machine)) == line
