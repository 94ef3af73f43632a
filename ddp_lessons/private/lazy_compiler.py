"""
Defer the import of torch's compiler until a cell compiles.

The first DDP model and the first optimizer of a process import `torch._dynamo`, about 800 modules.
This takes a second of CPU time and 80 MiB in each rank, only to find that nothing is compiled.
Three places of torch do so. We replace them by code with the same result, which does not import the
compiler. Once `torch._dynamo` is imported for another reason, such as `torch.compile`, torch's own
code is put back, as if this file did not exist.

If a version of torch lacks these places or has others, it imports its compiler as usual.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Iterator, Sequence
from types import CodeType, ModuleType
from typing import Any

import torch
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer

from ddp_lessons.private.reaching import register_private_name

_COMPILER = "torch._dynamo"
_CACHE = "__dynamo_disable"  # attribute in which torch caches a function's uncompiled version


def defer_compiler_import() -> None:
    """
    Have DDP and optimizers work without `torch._dynamo` until it is imported for another reason.

    Do nothing if it is imported already, or if this function was called before.

    Source: torch/_compile.py, torch/optim/optimizer.py, torch/nn/parallel/distributed.py.
    """
    if _COMPILER in sys.modules or any(isinstance(finder, _Awaited) for finder in sys.meta_path):
        return
    undo: list[Callable[[], object]] = [
        _pass_through(owner) for owner in (Optimizer, DistributedDataParallel)
    ]
    undo += [_step_plainly(kind) for kind in _kinds_of(Optimizer)]
    vars(torch)["_dynamo"] = _Unasked()
    undo.append(lambda: vars(torch).pop("_dynamo"))
    sys.meta_path.insert(0, _Awaited(undo))


class _Awaited:
    """
    An import finder that puts torch's own code back when the compiler is about to be imported.
    """

    def __init__(self, undo: list[Callable[[], object]]) -> None:
        self._undo = undo

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> None:
        """
        Put torch's own code back if the compiler is imported. Find no module, so others search on.
        """
        if name == _COMPILER:
            undo, self._undo = self._undo, []
            for put_back in undo:
                put_back()


# ---- torch._compile: functions that the compiler must not look into ----


def _pass_through(owner: type) -> Callable[[], None]:
    # Each wrapper asks the compiler for a version of its function that is never compiled, and
    # caches it. Without a compiler that version is the function itself.
    inner = _nested_code("torch._compile", "_disable_dynamo", "inner")
    functions = [
        layer.__wrapped__
        for value in vars(owner).values()
        for layer in _layers(value)
        if inner is not None and layer.__code__ is inner
    ]
    for function in functions:
        setattr(function, _CACHE, function)

    def put_back() -> None:
        for function in functions:
            delattr(function, _CACHE)

    return put_back


def _layers(function: object) -> Iterator[Any]:
    # Yield a function, and the functions that its decorators have wrapped.
    while hasattr(function, "__code__"):
        yield function
        function = getattr(function, "__wrapped__", None)


def _nested_code(module: str, factory: str, name: str) -> CodeType | None:
    # Return the code of a function nested in another one; None if this torch has no such function.
    made_by = getattr(getattr(sys.modules.get(module), factory, None), "__code__", None)
    codes = made_by.co_consts if made_by else ()
    return next((c for c in codes if isinstance(c, CodeType) and c.co_name == name), None)


# ---- torch.optim: the graph breaks around an optimizer's step ----


def _plainly(func: Callable[..., object] | None) -> Callable[..., object]:
    def _use_grad(*args: Any, **kwargs: object) -> object:
        # The same code as in torch/optim/optimizer.py, without the two graph breaks. It runs with
        # the globals of that file, in which `torch` means the same.
        prev_grad = torch.is_grad_enabled()
        try:
            torch.set_grad_enabled(args[0].defaults["differentiable"])
            return func(*args, **kwargs)  # type: ignore[misc]  # if None, it is not called
        finally:
            torch.set_grad_enabled(prev_grad)

    return _use_grad


def _step_plainly(kind: type[Optimizer]) -> Callable[[], None]:
    # Change the method's code, not the method. The first optimizer of a class makes torch wrap the
    # class's `step` (see `profile_hook_step`), and a scheduler wraps it again: a method that was
    # replaced before could not be put back inside of these wrappers.
    step = vars(kind).get("step")
    theirs, ours = getattr(step, "__code__", None), _plainly(None).__code__
    if step is None or theirs is None or theirs is not _code_of_step():
        return lambda: None
    step.__code__ = ours

    def put_back() -> None:
        step.__code__ = theirs

    return put_back


def _code_of_step() -> CodeType | None:
    # Return torch's code of a `step`; None if ours cannot take its place, as it uses other names.
    ours = _plainly(None).__code__
    theirs = _nested_code("torch.optim.optimizer", "_use_grad_for_differentiable", ours.co_name)
    return theirs if theirs is not None and theirs.co_freevars == ours.co_freevars else None


def _kinds_of(kind: type[Optimizer]) -> list[type[Optimizer]]:
    found = [kind]
    for below in kind.__subclasses__():
        found += _kinds_of(below)
    return found


# ---- torch.nn.parallel: DDP asks which optimisation a compiler would use ----


class _Unasked:
    """
    A stand-in for the attribute `torch._dynamo`: it answers DDP's question without an import.

    Any other access imports the real module.
    """

    def __getattr__(self, name: str) -> Any:
        if name == "utils":
            return _UnaskedUtils()
        return getattr(importlib.import_module(_COMPILER), name)

    def __setattr__(self, name: str, value: object) -> None:
        setattr(importlib.import_module(_COMPILER), name, value)


class _UnaskedUtils:
    """
    A stand-in for `torch._dynamo.utils` of the same kind.
    """

    def __getattr__(self, name: str) -> Any:
        if name == "get_optimize_ddp_mode":
            return lambda: "ddp_optimizer"  # torch's default, which no code has changed yet
        return getattr(importlib.import_module(f"{_COMPILER}.utils"), name)


_LOST = "a rank's first DDP model takes a second longer, and a rank that trains 80 MiB more"
register_private_name(
    "torch._compile._disable_dynamo.inner",
    oldest_promised="torch 2.11",
    lost=_LOST,
    probe=lambda: _nested_code("torch._compile", "_disable_dynamo", "inner") is not None,
)
register_private_name(
    "torch.optim.optimizer._use_grad_for_differentiable._use_grad",
    oldest_promised="torch 2.11",
    lost=_LOST,
    probe=lambda: _code_of_step() is not None,
)
register_private_name(
    "torch.nn.parallel.DistributedDataParallel.__init__.get_optimize_ddp_mode",
    oldest_promised="torch 2.11",
    lost=_LOST,
    probe=lambda: "get_optimize_ddp_mode" in DistributedDataParallel.__init__.__code__.co_names,
)
