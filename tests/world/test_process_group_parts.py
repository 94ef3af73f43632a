"""
The backends that exist here, compared with torch's own attempt, and subgroups, which all ranks make
together.
"""

import warnings

import pytest
import torch
import torch.distributed as dist
from worlds import run_world

from ddp_lessons.errors import BadInput
from ddp_lessons.process_group import backends, backends_table, split_by_name, split_evenly
from ddp_lessons.process_group.carriers import _KNOWN, _Known, check_backend

NAMES = ["gloo", "nccl", "mpi", "ucc", "xccl"]


def _makes_a_group(name):
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch warns before it refuses
            dist.init_process_group(name, store=dist.HashStore(), rank=0, world_size=1)
    except (RuntimeError, ValueError, AssertionError):
        return False
    dist.destroy_process_group()
    return True


@pytest.mark.parametrize("name", ["gloo", "nccl", "ucc", "xccl"])
def test_a_backend_exists_where_a_group_can_be_made_with_it(name):
    """
    A backend is reported to exist if torch can make a group with it. (MPI is left out: it needs its
    own launcher.)
    """
    state = {state.name: state for state in backends()}[name]
    assert state.exists == _makes_a_group(name)
    assert bool(state.cure) != state.exists


def test_backends_are_those_that_torch_knows_in_a_fixed_order():
    """
    The backends are those that torch knows, in a fixed order. This fails if torch drops or adds a
    name.
    """
    assert [state.name for state in backends()] == NAMES
    assert set(dist.Backend.backend_list) - set(NAMES) <= {"undefined", "fake"}
    assert backends()[2].exists == dist.is_mpi_available()


@pytest.mark.parametrize(
    ("is_built", "has_gpu", "exists", "reason"),
    [
        (False, False, False, "This torch was built without it."),
        (False, True, False, "This torch was built without it."),
        (True, False, False, "This torch has it, and finds no device for it."),
        (True, True, True, "It carries GPU tensors, one NVIDIA or AMD GPU a rank."),
    ],
)
def test_nccl_needs_a_torch_that_has_it_and_a_gpu(monkeypatch, is_built, has_gpu, exists, reason):
    """
    NCCL needs a torch that was built with it and a GPU. Each lack has its own remedy.
    """
    known = _Known(lambda: is_built, _KNOWN["nccl"].carries, "Install.", "cuda")
    monkeypatch.setitem(_KNOWN, "nccl", known)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: has_gpu)
    state = backends()[1]
    assert (state.exists, state.reason) == (exists, reason)


def test_backends_table_has_a_line_for_each():
    """
    The table, which a lesson prints, is aligned and has no spaces at the ends of lines.
    """
    lines = backends_table().splitlines()
    assert [line.split()[0] for line in lines] == ["backend", *NAMES]
    assert lines[1] == "gloo     yes   It carries CPU tensors."
    assert all(line == line.rstrip() for line in lines)
    assert backends_table(backends()[:1]).splitlines() == lines[:2]


def test_check_backend_says_why_and_what_to_do(monkeypatch):
    """
    The error says why a backend is missing and what to do; torch says only that it is not built in.
    """
    monkeypatch.setitem(_KNOWN, "nccl", _Known(lambda: False, "", "Install it.", "cuda"))
    check_backend("gloo")
    check_backend("cpu:gloo")
    for asked in ("nccl", "NCCL", "cpu:gloo,cuda:nccl"):
        with pytest.raises(BadInput) as refused:
            check_backend(asked)
        message = str(refused.value)
        assert message.startswith("The backend nccl does not exist here: one of gloo")
        assert message.endswith("This torch was built without it. Install it.")
    with pytest.raises(BadInput, match="There is no backend nonsense: "):
        check_backend("nonsense")


def _sum_in_halves(rank, world_size, num_parts):
    part = split_evenly(num_parts)
    total = torch.tensor([10**rank])
    dist.all_reduce(total, group=part)
    return dist.get_process_group_ranks(part), total.item(), part.group_desc


@pytest.mark.parametrize(("world_size", "num_parts"), [(1, 1), (2, 2), (3, 1), (4, 2)])
def test_split_evenly_gives_each_rank_the_group_of_its_part(world_size, num_parts):
    """
    Each part's sum has only its own ranks.
    """
    size = world_size // num_parts
    for rank, seen in enumerate(run_world(world_size, _sum_in_halves, num_parts)):
        first = rank // size * size
        mine = list(range(first, first + size))
        assert seen == (mine, sum(10**r for r in mine), f"part-{rank // size}")


def _sum_in_named_parts(rank, world_size):
    parts = {"odd": range(1, world_size, 2), "first": [0]}
    part = split_by_name(parts)
    total = torch.tensor([10**rank])
    if part is not None:
        dist.all_reduce(total, group=part)
    return part and part.group_desc, total.item()


@pytest.mark.parametrize("world_size", [2, 3, 4])
def test_split_by_name_leaves_out_who_is_in_no_part(world_size):
    """
    All ranks make every group. A rank in no part gets None, and the others need not wait for it.
    """
    seen = run_world(world_size, _sum_in_named_parts)
    odd = sum(10**r for r in range(1, world_size, 2))
    expected = [("first", 1), ("odd", odd), (None, 100), ("odd", odd)]
    assert seen == expected[:world_size]


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: split_evenly(0), "The ranks do not split evenly: a number of parts that "),
        (lambda: split_evenly(2), "The ranks do not split evenly: a number of parts that "),
        (lambda: split_by_name({"a": []}), "The part 'a' is empty: at least one rank (got none, "),
        (lambda: split_by_name({"a": [1]}), "The part 'a' holds a stranger: ranks from 0 to 0 "),
        (lambda: split_by_name({"a": [0], "b": [0]}), "Rank 0 is in two parts: one at most "),
    ],
)
def test_split_refuses_parts_that_cannot_be(lone_group, call, message):
    """
    A refusal depends only on the arguments, so all ranks refuse or none does.
    """
    with pytest.raises(BadInput) as refused:
        call()
    assert str(refused.value).startswith(message)
    assert "rank 0 of 1)" in str(refused.value)


def test_split_outside_a_group_is_refused():
    """
    Outside a group there is nothing to split, so `split_evenly` is refused.
    """
    with pytest.raises(BadInput, match="There is no group to split: "):
        split_evenly(1)
