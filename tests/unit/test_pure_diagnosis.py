"""
Diagnosis only returns what it concludes: the kernel prints, signals, and reads files.
"""

import ast

import pytest
from paths import ROOT

ROOM = ROOT / "ddp_lessons" / "ranks" / "diagnosis"
ACTS = {
    "print", "open", "read_text", "write_text", "read_bytes", "write_bytes", "kill", "killpg",
    "pthread_kill", "raise_signal", "signal_ranks", "sleep", "get_ipython", "run_line_magic",
}  # fmt: skip
"""
Names of functions that act on the world, or read it.
"""
ALLOWED_OF_MODULES = {"signal": {"Signals"}, "time": {"monotonic"}, "os": set(), "sys": set()}
"""
For each module that can act, what diagnosis may use of it: names of signals, and a default clock.
"""


def acts(source):
    """
    Return (line, name) of each use in a module of a function that acts.
    """
    found = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Name) and node.id in ACTS:
            found.append((node.lineno, node.id))
        elif isinstance(node, ast.Attribute):
            of = node.value.id if isinstance(node.value, ast.Name) else ""
            if node.attr in ACTS or node.attr not in ALLOWED_OF_MODULES.get(of, {node.attr}):
                found.append((node.lineno, f"{of}.{node.attr}"))
        elif isinstance(node, ast.ImportFrom) and node.module in ALLOWED_OF_MODULES:
            found.append((node.lineno, node.module))
    return found


@pytest.mark.parametrize("path", sorted(ROOM.rglob("*.py")), ids=lambda path: path.name)
def test_diagnosis_only_returns_values(path):
    """
    A module of `ranks/diagnosis` does not act, so that a diagnosis can be repeated and tested
    without ranks. Move what acts to `ranks/kernel`, and pass its result as an argument.
    """
    assert acts(path.read_text()) == []


@pytest.mark.parametrize(
    "source",
    [
        "print(1)",
        "with open(path): pass",
        "stack_file(folder, 2).read_text()",
        "import os\nos.kill(1, 9)",
        "import signal\nsignal.signal(2, f)",
        "from os import kill",
        "import sys\nsys.modules['IPython'].get_ipython()",
    ],
)
def test_an_act_is_found(source):
    """
    The test above finds each of these: an AST walk that finds nothing would pass, too.
    """
    assert acts(source)
