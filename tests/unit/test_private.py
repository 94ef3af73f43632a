"""
Private names of other packages: each exists, is used in one module, and its entry says what fails
without it.
"""

import ast
import importlib.metadata
import sys

import pytest
import torch
import torch.distributed as dist
from paths import ROOT

from ddp_lessons.errors import PrivateNameGone
from ddp_lessons.private import (
    PRIVATE_NAMES,
    PrivateName,
    autograd,
    dispatcher,
    missing_names,
    process_groups,
    reaching,
    storages,
    uses_private_name,
)

missing_names()  # imports every module of ddp_lessons/private, which completes PRIVATE_NAMES

ALLOWED = {
    "_current_frames": "documented by Python: sys._current_frames",
    "_getframe": "documented by Python: sys._getframe",
    "_replace": "documented by Python: a method of every namedtuple",
    "_DummyThread": "Python: a thread that C++ started, which threading has no other way to tell",
    "_target": "Python: the function of a thread, which tells whose thread it is",
    "_run_exitfuncs": "Python: a forked rank has no other way to run its exit functions",
    "_BatchNorm": "torch: the base class of all batch norms, which a subclass has to name",
    "_reset_state": "accelerate: the way its own tests reset it; no promise of ours rests on it",
    "_dynamo": "torch: imported alone, so that its seconds do not count as an answer's",
}
"""
Private names that any module may use directly, and why.
"""


def sources():
    """
    Yield the path and the syntax tree of every module of the package outside of
    ddp_lessons/private.
    """
    for path in sorted((ROOT / "ddp_lessons").rglob("*.py")):
        if path.parent.name != "private":
            yield path.relative_to(ROOT), ast.parse(path.read_text())


def names_bound_by(tree):
    """
    Return every name that a module defines, assigns, imports or takes as an argument.
    """
    bound = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            bound.add(node.name)
        elif isinstance(node, ast.Name | ast.Attribute) and isinstance(node.ctx, ast.Store):
            bound.add(node.id if isinstance(node, ast.Name) else node.attr)
        elif isinstance(node, ast.arg):
            bound.add(node.arg)
    return bound


def is_private(name):
    return name.startswith("_") and not name.startswith("__")


def private_uses(tree, ours):
    """
    Yield the private names of other packages that a module reads or imports.

    Args:
        tree: The module's syntax tree.
        ours: The names that the package binds somewhere.
    """
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute):
            used = [node.attr]
        elif isinstance(node, ast.Import):
            used = [part for alias in node.names for part in alias.name.split(".")]
        elif isinstance(node, ast.ImportFrom) and not (node.module or "").startswith("ddp_lessons"):
            modules = (node.module or "").split(".") if not node.level else []
            used = [*modules, *([] if node.level else [alias.name for alias in node.names])]
        elif isinstance(node, ast.Call) and getattr(node.func, "id", "") in {"getattr", "hasattr"}:
            used = [arg.value for arg in node.args[1:2] if isinstance(arg, ast.Constant)]
        else:
            continue
        yield from (name for name in used if is_private(name) and name not in ours)


def test_no_other_module_uses_a_private_name():
    """
    Private names are used in ddp_lessons/private only. After an upgrade that removes one, a single
    place must change, and the doctor reports it.
    """
    modules = dict(sources())
    ours = set().union(*map(names_bound_by, modules.values()))
    found = {
        f"{path}: {name}"
        for path, tree in modules.items()
        for name in private_uses(tree, ours)
        if name not in ALLOWED
    }
    assert found == set(), "reach these through a function of ddp_lessons/private"


@pytest.mark.parametrize(
    "source",
    [
        "import torch\ntorch.distributed._made_up",
        "from torch import _made_up",
        "import torch._made_up",
        "from torch._made_up import name",
        "getattr(client, '_made_up', None)",
    ],
)
def test_each_way_to_a_private_name_is_found(source):
    """
    Each way to use a private name is found, so the rule above can fail.
    """
    assert list(private_uses(ast.parse(source), {"_ours"})) == ["_made_up"]


def test_our_own_underscores_are_let_be():
    """
    The package's own names with an underscore are allowed, because they belong to one module.
    """
    source = "class A:\n    def __init__(self):\n        self._mine = 1\nA()._mine"
    tree = ast.parse(source)
    assert list(private_uses(tree, names_bound_by(tree))) == []


@pytest.mark.parametrize("name", PRIVATE_NAMES.values(), ids=lambda name: name.name)
def test_each_private_name_is_there(name):
    """
    Each private name exists in the installed versions. Names of instances are tried by the tests
    that use them.
    """
    assert name.is_there()
    assert name.oldest_promised.partition(" ")[0].lower() == name.package.lower()
    assert not name.lost.endswith(".")


def test_a_name_that_is_gone_is_listed_and_its_function_says_what_is_lost(monkeypatch):
    """
    A missing name is listed, and its function raises an error that says what fails without it,
    instead of an AttributeError.
    """
    monkeypatch.delattr(dist.distributed_c10d, "_world")
    assert "torch.distributed.distributed_c10d._world" in {name.name for name in missing_names()}
    with pytest.raises(PrivateNameGone) as caught:
        process_groups.all_groups()
    version = importlib.metadata.version("torch")
    assert str(caught.value).startswith(
        "`torch.distributed.distributed_c10d._world` is gone: expected a private name that "
        f"torch 2.11 has (got torch {version} without it). Therefore "
    )
    assert "Therefore ranks cannot be released" in str(caught.value)


@pytest.mark.parametrize(("newer", "is_there"), [("sys.path", True), ("sys.nothing", False)])
def test_a_name_that_was_renamed_is_looked_for_under_its_newer_name(newer, is_there, monkeypatch):
    """
    A name counts as there if the installed package has its newer name, because the function that
    uses it tries both. The error that both are gone names both.
    """
    monkeypatch.setattr(reaching, "PRIVATE_NAMES", {})

    @uses_private_name(
        "sys.gone", oldest_promised="Python 3.11", lost="nothing works", renamed_to=newer
    )
    def reach():
        return sys.gone

    assert reaching.PRIVATE_NAMES["sys.gone"].is_there() is is_there
    with pytest.raises(PrivateNameGone, match=f"`sys.gone` is gone: .*and without `{newer}`"):
        reach()


def test_a_module_that_is_gone_is_told_as_a_name_is(monkeypatch):
    """
    A missing module is reported like a missing name, because torch also moves modules.
    """
    monkeypatch.setitem(sys.modules, "torch.utils._python_dispatch", None)
    with pytest.raises(PrivateNameGone, match="TorchDispatchMode` is gone"):
        dispatcher.dispatch_mode()
    name = PrivateName("torch.no_such_module.name", "torch 2.11", "nothing works")
    assert not name.is_there()


def test_an_error_of_a_package_that_is_not_installed(monkeypatch):
    """
    The error's message works also for a package whose version is not known.
    """

    @uses_private_name(
        "no_such_package.name", oldest_promised="no_such_package 1", lost="nothing works"
    )
    def reach():
        raise ImportError("no module")

    monkeypatch.delitem(PRIVATE_NAMES, "no_such_package.name", raising=False)
    name = PrivateName("no_such_package.name", "no_such_package 1", "a")
    PRIVATE_NAMES[name.name] = name
    with pytest.raises(PrivateNameGone, match=r"\(got no_such_package no version without it\)"):
        reach()
    del PRIVATE_NAMES["no_such_package.name"]


# ---- contracts: the behaviour of each name on which the course relies ----


@pytest.fixture
def lone_world(tmp_path):
    """
    Join a default group of this process alone, and destroy it after the test.
    """
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    yield dist.group.WORLD
    if dist.is_initialized():
        dist.destroy_process_group()


def test_the_table_of_groups(lone_world):
    """
    The table lists each group with its store, backend and ranks until the group is destroyed.
    """
    pair = dist.new_group([0])
    assert process_groups.all_groups() == [lone_world, pair]
    assert process_groups.default_group() is lone_world
    assert process_groups.backend_name(pair) == "gloo"
    assert process_groups.ranks_of(pair) == [0]
    process_groups.store_of(lone_world).set("key", "value")
    assert process_groups.default_store().get("key") == b"value"
    dist.destroy_process_group(pair)
    assert not process_groups.is_alive(pair)
    assert process_groups.ranks_of(pair) is None


def test_the_count_by_which_groups_are_named(lone_world):
    """
    The count that names new groups can be set. Ranks meet under a group's name, so counts that
    differ between ranks would separate them.
    """
    process_groups.set_group_count(70)
    assert dist.new_group([0]).group_name == "70"
    assert process_groups.group_count() == 71


def test_another_default_group_and_store(lone_world):
    """
    The default group and a group's store can be replaced: a check gives an answer a smaller world,
    and a store without keys.
    """
    pair, store = dist.new_group([0]), dist.HashStore()
    process_groups.set_default_group(pair)
    assert dist.group.WORLD is pair
    process_groups.set_store(pair, store)
    assert process_groups.store_of(pair) is store
    process_groups.set_default_group(lone_world)
    dist.destroy_process_group(pair)
    process_groups.set_store(pair, store)
    assert pair not in process_groups.all_groups()


def test_all_groups_can_be_forgotten(lone_world):
    """
    All groups can be forgotten, as after an interrupt in the middle of `destroy_process_group`.
    """
    process_groups.forget_all_groups()
    assert process_groups.all_groups() == []
    assert not process_groups.has_named_groups()
    process_groups.set_default_group(None)
    assert not dist.is_initialized()


def test_the_number_of_a_group_s_last_collective(lone_world):
    """
    The sequence number grows by one for each collective, whatever its kind.
    """
    before = process_groups.sequence_number(lone_world)
    dist.barrier()
    dist.all_reduce(torch.ones(1))
    assert process_groups.sequence_number(lone_world) == before + 2


def test_the_operation_of_a_handle(lone_world):
    """
    Handles of two kinds of calls have different operation numbers.
    """
    numbers = {
        process_groups.operation_number(dist.all_reduce(torch.ones(1), async_op=True)),
        process_groups.operation_number(dist.broadcast(torch.ones(1), src=0, async_op=True)),
    }
    assert len(numbers) == 2


def test_the_flight_recorder_can_be_gone(monkeypatch):
    """
    A missing flight recorder raises PrivateNameGone, and does not look like an empty record.
    """
    bindings = sys.modules["torch._C"]._distributed_c10d
    monkeypatch.delattr(bindings, "_dump_fr_trace")
    monkeypatch.delattr(bindings, "_dump_nccl_trace", raising=False)
    with pytest.raises(PrivateNameGone, match="_dump_fr_trace"):
        process_groups.dump_flight_recorders(with_stacks=False)


def test_a_callback_comes_after_the_last_gradient():
    """
    The callback runs after the last gradient and every hook, and before `backward` returns.
    """
    order, weight = [], torch.ones(1, requires_grad=True)

    def hook(gradient):
        autograd.call_after_backward(lambda: order.append("after"))
        order.append("hook")

    (weight * 2).register_hook(hook)
    product = weight * 2
    product.register_hook(hook)
    weight.register_post_accumulate_grad_hook(lambda _: order.append("gradient"))
    product.backward()
    assert order == ["hook", "gradient", "after"]
    assert autograd.current_backward()() == -1


def test_a_hook_is_put_before_others():
    """
    A hook can be moved before the others, because torch calls hooks in the order of a dictionary.
    """
    order, weight = [], torch.ones(1, requires_grad=True)
    weight.register_hook(lambda _: order.append("first"))
    handle = weight.register_hook(lambda _: order.append("second"))
    autograd.put_hook_first(weight, handle.id)
    (weight * 2).backward()
    assert order == ["second", "first"]


def test_parts_of_a_sparse_tensor_and_of_a_tree():
    """
    The indices and values of a gradient with repeated indices are read, although torch's public
    methods refuse one. A tree's leaves are found and mapped.
    """
    twice = torch.sparse_coo_tensor([[0, 0]], [1.0, 2.0], (3,), check_invariants=True)
    indices, values = storages.sparse_parts(twice)
    assert (indices.tolist(), values.tolist()) == ([[0, 0]], [1.0, 2.0])
    assert dispatcher.tree_leaves({"a": [1, (2,)], "b": 3}) == [1, 2, 3]
    assert dispatcher.tree_map(lambda x: x + 1, [1, {"a": 2}]) == [2, {"a": 3}]


def test_a_storage_is_found_by_its_address():
    """
    A storage is found by its address, which does not keep it alive.
    """
    tensor = torch.ones(3)
    address = storages.address_of(tensor.untyped_storage())
    assert storages.storage_at(address).nbytes() == 12
