"""
Private names of other packages: each exists, is listed when it is gone, and has a contract test.
"""

import ast
import importlib
import importlib.metadata
import re
import sys
from types import SimpleNamespace

import pytest
import torch
import torch.distributed as dist
from paths import ROOT

from ddp_lessons.errors import PrivateNameGone
from ddp_lessons.private import (
    PRIVATE_NAMES,
    PrivateName,
    dispatcher,
    gloo_wakeup,
    missing_names,
    process_groups,
    reaching,
    uses_private_name,
)

missing_names()  # imports every module of ddp_lessons/private, which completes PRIVATE_NAMES


@pytest.mark.parametrize("name", PRIVATE_NAMES.values(), ids=lambda name: name.name)
def test_each_private_name_is_there(name):
    """
    Each private name exists in the installed versions.
    """
    assert name.is_there()
    assert name.oldest_promised.partition(" ")[0].lower() == name.package.lower()
    assert not name.lost.endswith(".")


def test_each_function_has_a_contract_test():
    """
    Each function of ddp_lessons/private that uses a private name is called in a contract test, so
    that a name which is there and has changed is found, too.
    """
    functions = {
        node.name
        for path in (ROOT / "ddp_lessons" / "private").glob("*.py")
        for node in ast.parse(path.read_text()).body
        if isinstance(node, ast.FunctionDef) and node.decorator_list
        if getattr(getattr(node.decorator_list[0], "func", None), "id", "") == "uses_private_name"
    }
    tests = "".join(path.read_text() for path in (ROOT / "tests").glob("*/test_private_*.py"))
    assert len(functions) > 40
    assert {name for name in functions if not re.search(rf"\b{name}\b", tests)} == set()


class Without:
    """
    An object that has every attribute of another one but one.
    """

    def __init__(self, owner, name):
        self._owner, self._name = owner, name

    def __getattr__(self, name):
        if name == self._name:
            raise AttributeError(name)
        return getattr(self._owner, name)


def without(owner, name):
    """
    Return a class without an attribute of its instances, or any other object without an attribute.
    """
    if not name.startswith("()."):
        return Without(owner, name)
    name = name.removeprefix("().")
    members = {k: v for kind in reversed(owner.__mro__[:-1]) for k, v in vars(kind).items()}
    members = {k: v for k, v in members.items() if k != name and not reaching.assigns(v, name)}
    annotations = {k: v for k, v in members.get("__annotations__", {}).items() if k != name}
    return SimpleNamespace(
        __mro__=(SimpleNamespace(**{**members, "__annotations__": annotations}),)
    )


PROBED = {
    "abortWaitSend": lambda patch: patch.setattr(gloo_wakeup, "_gloo", lambda: None),
    "inner": lambda patch: patch.setattr(torch._compile, "_disable_dynamo", print),
    "_use_grad": lambda patch: patch.delattr(
        sys.modules["torch.optim.optimizer"], "_use_grad_for_differentiable"
    ),
    "get_optimize_ddp_mode": lambda patch: patch.setattr(
        torch.nn.parallel.DistributedDataParallel, "__init__", lambda self: None
    ),
    "_group_start": lambda patch: patch.setattr(
        dist.distributed_c10d, "ProcessGroupNCCL", object, raising=False
    ),
    "_create_c10d_store": lambda patch: patch.delattr(
        sys.modules["torch.distributed.rendezvous"], "_create_c10d_store"
    ),
    "_tcp_rendezvous_handler": lambda patch: patch.delattr(
        sys.modules["torch.distributed.rendezvous"], "_tcp_rendezvous_handler"
    ),
}
"""
For each name that a probe finds: a function that removes it.
"""


@pytest.mark.parametrize("name", PRIVATE_NAMES.values(), ids=lambda name: name.name)
def test_each_private_name_that_is_gone_is_listed(name, monkeypatch):
    """
    The list that the doctor prints has each name once the installed package lacks it.
    """
    if name.probe is not None:
        PROBED[re.split(r"\W+", name.name)[-1]](monkeypatch)
    else:
        owner_path, _, last = name.name.rpartition(".")
        if owner_path.endswith("()"):
            owner_path, last = owner_path.removesuffix("()"), f"().{last}"
        parent_path, _, owner_name = owner_path.rpartition(".")
        parent = importlib.import_module(parent_path.partition(".")[0])
        for part in parent_path.split(".")[1:]:
            parent = getattr(parent, part)
        monkeypatch.setattr(parent, owner_name, without(getattr(parent, owner_name), last))
    monkeypatch.setattr(reaching, "PRIVATE_NAMES", {name.name: name})  # to look up this one alone
    assert missing_names() == [name]


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
