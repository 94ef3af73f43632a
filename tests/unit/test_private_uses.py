"""
Private names of other packages are used in ddp_lessons/private only, except for a few with reasons.
"""

import ast
import functools
import importlib
import re
from types import FunctionType

import pytest
from paths import ROOT

from ddp_lessons.private import PRIVATE_NAMES, missing_names

missing_names()  # imports every module of ddp_lessons/private, which completes PRIVATE_NAMES

PACKAGE = ROOT / "ddp_lessons"
ALLOWED = {
    "_current_frames": "Python: documented as sys._current_frames",
    "_getframe": "Python: documented as sys._getframe",
    "_exit": "Python: documented as os._exit",
    "_replace": "Python: documented as a method of every namedtuple",
    "_DummyThread": "Python: a thread that C++ started, which threading has no other way to tell",
    "_target": "Python: the function of a thread, which tells whose thread it is",
    "_bootstrap": "Python: a function at the outer end of a thread's stack",
    "_bootstrap_inner": "Python: a function at the outer end of a thread's stack",
    "_find_and_load": "Python: a function on the stack of an import",
    "_run_exitfuncs": "Python: a forked rank has no other way to run its exit functions",
    "_BatchNorm": "torch: the base class of all batch norms, which a subclass has to name",
    "_dynamo": "torch: imported alone, so that its seconds do not count as an answer's",
    "_inductor": "torch: in the command line of a compiler's process; nothing is called",
    "_fn": "torch: a wrapper in a stack that a learner reads, left out there",
    "_get_layout": "torch: in every file that torch.save wrote; the name belongs to the format",
    "_MEM_FORMAT_ENCODING": "torch: in every sharded checkpoint; the name belongs to the format",
    "_StorageInfo": "torch: in every sharded checkpoint; the name belongs to the format",
    "_allgather_base": "Gloo: the flight recorder writes it; a newer name is shown as it is",
    "_reduce_scatter_base": "Gloo: the flight recorder writes it; a newer name is shown as it is",
    "_allgather_base_": "torch: an operation of c10d; test_trace_recorder looks for each",
    "_reduce_scatter_base_": "torch: an operation of c10d; test_trace_recorder looks for each",
    "_IS_INTERACTIVE": "lightning: whether there is a prompt; it need not be there",
    "_pydev_bundle": "pydevd: a module of threads to leave out",
    "_pydevd_bundle": "pydevd: a module of threads to leave out",
    "_reset_state": "accelerate: the way its own tests reset it; no promise of ours rests on it",
    "_ddp_lessons_own": "ours: a name that is put into the answer's module",
    "_ddp_lessons_set": "ours: a name that is put into the answer's module",
    "_ddp_lessons_hash": "ours: a name that is put into the answer's module",
    "_wait": "ours: a method of trace/awaiting.py, found on a stack",
    "_future_wait": "ours: a method of trace/awaiting.py, found on a stack",
    "_like": "no name: the end of one",
    "_s": "no name: the end of one",
}
"""
Private names that any module may use directly, and why.
"""


@functools.cache
def tree_of(path):
    """
    Return the syntax tree of a module.
    """
    return ast.parse(path.read_text())


def sources():
    """
    Yield the path of every module of the package outside of ddp_lessons/private.
    """
    yield from (path for path in sorted(PACKAGE.rglob("*.py")) if path.parent.name != "private")


def names_bound_by(tree):
    """
    Return every name that a module defines, assigns or takes as an argument.
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


def our_imports(path):
    """
    Return {name: path of the module of ours that it comes from} of a module's imports.
    """
    found = {}
    for node in ast.walk(tree_of(path)):
        if isinstance(node, ast.ImportFrom):
            folder = path.parents[node.level - 1] if node.level else ROOT
            base = folder.joinpath(*(node.module or "").split("."))
            for alias in node.names:
                candidates = (base / f"{alias.name}.py", base.with_suffix(".py"))
                target = next((one for one in candidates if one.exists()), None)
                if target is not None and target.is_relative_to(PACKAGE):
                    found[alias.asname or alias.name] = target
    return found


def names_known_to(path):
    """
    Return the names that a module binds, or a module of ours that it imports from, or a module of
    the classes that its classes extend.
    """
    imports = our_imports(path)
    known = names_bound_by(tree_of(path)).union(
        *(names_bound_by(tree_of(other)) for other in set(imports.values()))
    )
    for node in ast.walk(tree_of(path)):
        for base in node.bases if isinstance(node, ast.ClassDef) else ():
            origin = imports.get(getattr(base, "id", getattr(getattr(base, "value", 0), "id", "")))
            known |= names_known_to(origin) if origin else set()
    return known


def private_uses(tree, ours):
    """
    Yield the private names of other packages that a module reads, imports or writes as a text.

    Args:
        tree: The module's syntax tree.
        ours: The names of ours that the module may use.
    """
    pieces = {
        id(piece)
        for node in ast.walk(tree)
        if isinstance(node, ast.JoinedStr)
        for piece in node.values
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute):
            used = [node.attr]
        elif isinstance(node, ast.Import):
            used = [part for alias in node.names for part in alias.name.split(".")]
        elif isinstance(node, ast.ImportFrom) and not (node.module or "").startswith("ddp_lessons"):
            modules = (node.module or "").split(".") if not node.level else []
            used = [*modules, *([] if node.level else [alias.name for alias in node.names])]
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            used = [] if id(node) in pieces else [node.value]
        else:
            continue
        yield from (
            name for name in used if re.fullmatch(r"_[A-Za-z]\w*", name) and name not in ours
        )


def test_no_other_module_uses_a_private_name():
    """
    Private names are used in ddp_lessons/private only. After an upgrade that removes one, a single
    place must change, and the doctor reports it.
    """
    found = {
        f"{path.relative_to(ROOT)}: {name}"
        for path in sources()
        for name in private_uses(tree_of(path), names_known_to(path))
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
        "kinds = ('_made_up',)",
        "client.__dict__.pop('_made_up')",
    ],
)
def test_each_way_to_a_private_name_is_found(source):
    """
    Each way to use a private name is found, so the rule above can fail.
    """
    assert list(private_uses(ast.parse(source), {"_ours"})) == ["_made_up"]


def test_our_own_underscores_are_let_be():
    """
    The package's own names with an underscore are allowed in their module, and where a class
    extends one of that module. Another module's names do not count.
    """
    overlapped = PACKAGE / "sharded_optimizer" / "overlapped.py"
    assert "_group" in names_known_to(overlapped) - names_bound_by(tree_of(overlapped))
    assert "_tap" not in names_known_to(overlapped)


def classes_with_private_methods():
    """
    Yield every class of the package that has a method with an underscore and a base class.
    """
    for path in sources():
        for node in tree_of(path).body:
            if isinstance(node, ast.ClassDef) and node.bases:
                names = {m.name for m in node.body if isinstance(m, ast.FunctionDef)}
                if any(name.startswith("_") and not name.startswith("__") for name in names):
                    module = ".".join(path.relative_to(ROOT).with_suffix("").parts)
                    yield getattr(importlib.import_module(module), node.name)


def test_each_method_that_overrides_a_private_one_is_registered():
    """
    A private method of another package that a class of ours overrides is a private name, too:
    without it, nothing calls ours.
    """
    registered = {name.rpartition(".")[2] for name in PRIVATE_NAMES}
    overridden = {
        f"{kind.__name__}.{name}"
        for kind in classes_with_private_methods()
        for name, member in vars(kind).items()
        if name.startswith("_") and not name.startswith("__") and isinstance(member, FunctionType)
        for base in kind.__mro__[1:]
        if name in vars(base) and not base.__module__.startswith("ddp_lessons")
        if name not in registered
    }
    assert overridden == set(), "register these in ddp_lessons/private/overridden_methods.py"
