"""
Put off the import of torch's compiler until somebody compiles.

The first DDP model and the first optimizer of a process import `torch._dynamo`, about 800 modules:
a second of CPU time and 80 MiB in each rank, only to hear that nobody compiles. Three places of
torch do so. Until the import happens for another reason, such as `torch.compile`, they do what they
do in the end anyway; from then on they are torch's own again, as if this file did not exist.

A torch that has these places no more, or others, imports its compiler as it likes.
"""

import importlib
import sys
from types import CodeType

import torch
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer

_COMPILER = "torch._dynamo"
_CACHE = "__dynamo_disable"  # where torch keeps what `torch._disable_dynamo` made of a function


def defer_compiler_import():
    """
    Have DDP and optimizers do without `torch._dynamo` until it is imported for another reason.

    Does nothing if it is imported already, or if this was called before.

    Source: torch/_compile.py, torch/optim/optimizer.py, torch/nn/parallel/distributed.py.
    """
    if _COMPILER in sys.modules or any(isinstance(finder, _Awaited) for finder in sys.meta_path):
        return
    undo = [_pass_through(owner) for owner in (Optimizer, DistributedDataParallel)]
    undo += [_step_plainly(kind) for kind in _kinds_of(Optimizer)]
    vars(torch)["_dynamo"] = _Unasked()
    undo.append(lambda: vars(torch).pop("_dynamo"))
    sys.meta_path.insert(0, _Awaited(undo))


class _Awaited:
    """
    Put everything back as soon as somebody imports the compiler, before any of it is loaded.
    """

    def __init__(self, undo):
        self._undo = undo

    def find_spec(self, name, path=None, target=None):
        """
        Find nothing: it is only asked first.
        """
        if name == _COMPILER:
            undo, self._undo = self._undo, []
            for put_back in undo:
                put_back()


# ---- torch._compile: functions that the compiler must not look into ----


def _pass_through(owner):
    # Each asks the compiler for a version of the function that it leaves alone. Without a compiler
    # that is the function.
    inner = _nested_code("torch._compile", "_disable_dynamo", "inner")
    functions = [
        layer.__wrapped__
        for value in vars(owner).values()
        for layer in _layers(value)
        if inner is not None and layer.__code__ is inner
    ]
    for function in functions:
        setattr(function, _CACHE, function)

    def put_back():
        for function in functions:
            delattr(function, _CACHE)

    return put_back


def _layers(function):
    # A function, and what its decorators have wrapped.
    while hasattr(function, "__code__"):
        yield function
        function = getattr(function, "__wrapped__", None)


def _nested_code(module, factory, name):
    # The code of a function that another one makes; None in a torch that has no such function.
    made_by = getattr(getattr(sys.modules.get(module), factory, None), "__code__", None)
    codes = made_by.co_consts if made_by else ()
    return next((c for c in codes if isinstance(c, CodeType) and c.co_name == name), None)


# ---- torch.optim: a step tells the compiler that its graph ends here ----


def _plainly(func):
    def _use_grad(*args, **kwargs):
        # As in torch/optim/optimizer.py, but for the two graph breaks. It runs with the globals of
        # that file, in which `torch` means the same.
        prev_grad = torch.is_grad_enabled()
        try:
            torch.set_grad_enabled(args[0].defaults["differentiable"])
            return func(*args, **kwargs)
        finally:
            torch.set_grad_enabled(prev_grad)

    return _use_grad


def _step_plainly(kind):
    # The code is changed, and not the method: others hold on to the method, which must be torch's
    # own again wherever it is.
    step = vars(kind).get("step")
    theirs, ours = getattr(step, "__code__", None), _plainly(None).__code__
    known = _nested_code("torch.optim.optimizer", "_use_grad_for_differentiable", ours.co_name)
    is_known = known is not None and theirs is known
    if not is_known or theirs.co_freevars != ours.co_freevars:
        return lambda: None
    step.__code__ = ours

    def put_back():
        step.__code__ = theirs

    return put_back


def _kinds_of(kind):
    found = [kind]
    for below in kind.__subclasses__():
        found += _kinds_of(below)
    return found


# ---- torch.nn.parallel: DDP asks how it would be compiled ----


class _Unasked:
    """
    Stand for `torch._dynamo` as an attribute of torch: know what DDP asks, import it for the rest.
    """

    def __getattr__(self, name):
        if name == "utils":
            return _UnaskedUtils()
        return getattr(importlib.import_module(_COMPILER), name)

    def __setattr__(self, name, value):
        setattr(importlib.import_module(_COMPILER), name, value)


class _UnaskedUtils:
    """
    Stand for `torch._dynamo.utils` in the same way.
    """

    def __getattr__(self, name):
        if name == "get_optimize_ddp_mode":
            return lambda: "ddp_optimizer"  # torch's default, which nobody has changed yet
        return getattr(importlib.import_module(f"{_COMPILER}.utils"), name)
