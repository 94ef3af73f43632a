"""
The annotations of what other modules call: they say what a function takes and returns.
"""

import ast

from paths import ROOT

PACKAGE = ROOT / "ddp_lessons"
NOT_YET = ("course", "progress")
"""
Parts that need no annotations; of `checks`, the kit alone needs them.
"""


def modules():
    """
    Return the paths of the modules whose public functions are annotated.
    """
    parts = [path for path in PACKAGE.iterdir() if path.name not in (*NOT_YET, "checks")]
    folders = [*(path for path in parts if path.is_dir()), PACKAGE / "checks" / "kit"]
    return sorted([*PACKAGE.glob("*.py"), *(path for f in folders for path in f.rglob("*.py"))])


def public_functions(body, owner=""):
    """
    Yield (name, syntax tree, whether it is a method) for each public function, also of classes.
    """
    for node in body:
        name = getattr(node, "name", "_")
        is_public = not name.startswith("_") or (owner and name.startswith("__"))
        if isinstance(node, ast.ClassDef) and is_public:
            yield from public_functions(node.body, f"{name}.")
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and is_public:
            yield owner + name, node, bool(owner)


def lacks_annotations(function, is_method):
    """
    Return whether a parameter or the result of a function has no annotation. `self` needs none.
    """
    of = function.args
    is_static = any(getattr(d, "id", "") == "staticmethod" for d in function.decorator_list)
    positional = [*of.posonlyargs, *of.args][1 if is_method and not is_static else 0 :]
    taken = [*positional, *of.kwonlyargs, of.vararg, of.kwarg]
    return function.returns is None or any(arg and arg.annotation is None for arg in taken)


def test_public_functions_are_annotated():
    """
    Every public function of the textbook, of `ranks`, `private` and the checks' kit has annotations
    of all parameters and of its result.
    """
    found = [
        f"{path.relative_to(ROOT)}:{function.lineno} {name}"
        for path in modules()
        for name, function, is_method in public_functions(ast.parse(path.read_text()).body)
        if lacks_annotations(function, is_method)
    ]
    assert found == []


def test_a_missing_annotation_is_found():
    """
    A parameter or a result without an annotation is found, and `self` is none.
    """
    source = (
        "class A:\n def whole(self, a: int) -> None: ...\n def half(self, a): ...\n"
        " def __len__(self): ...\n def _own(self): ...\n"
        "def none(*a) -> None: ...\ndef all(*a: int, b: int = 1) -> None: ..."
    )
    functions = public_functions(ast.parse(source).body)
    found = [
        name for name, function, is_method in functions if lacks_annotations(function, is_method)
    ]
    assert found == ["A.half", "A.__len__", "none"]
