"""
The halves of a check: which of its functions run on ranks, and which in the notebook's kernel.

    python tests/support/check_halves.py --write     put the sentence into each check's docstring
"""

import ast
import re
import sys
import textwrap
from pathlib import Path

from paths import ROOT

CHECKS = ROOT / "ddp_lessons" / "checks"
_SENTENCE = re.compile(r"\n\nOn each rank: .*?\.\s+In\s+the\s+kernel:\s+the\s+rest\.", re.DOTALL)


def modules_of_tasks():
    """
    Return the path of each module that defines a Task.
    """
    paths = sorted(CHECKS.glob("*/*.py"))
    return [path for path in paths if path.parent.name != "kit" and _tasks(_parsed(path))]


def sentence_of(path):
    """
    Return the sentence about a module's halves, wrapped for its docstring.

    A function that a task's `act` reaches runs on ranks; one that cases or judgement reach, too,
    runs in both.
    """
    tree = _parsed(path)
    tasks = _tasks(tree)
    names = {
        node.name: node for node in tree.body if isinstance(node, ast.FunctionDef | ast.ClassDef)
    }
    keywords = [keyword for task in tasks for keyword in task.value.keywords]
    act = [keyword.value for keyword in keywords if keyword.arg == "act"]
    rest = [keyword.value for keyword in keywords if keyword.arg != "act"]
    rest += [
        node
        for node in tree.body
        if node not in tasks and not isinstance(node, ast.FunctionDef | ast.ClassDef)
    ]
    on_ranks, in_kernel = _reached(act, names), _reached(rest, names)
    only = [name for name in names if name in on_ranks - in_kernel]
    both = [name for name in names if name in on_ranks & in_kernel]
    words = f"On each rank: {_listed(only)}."
    if both:
        words = f"On each rank: {_listed(only)}; in both: {_listed(both)}."
    return textwrap.fill(f"{words} In the kernel: the rest.", 100, break_on_hyphens=False)


def with_sentence(path):
    """
    Return a module's source with its sentence in the docstring.
    """
    source = path.read_text()
    begin, docstring, rest = source.split('"""', 2)
    docstring = _SENTENCE.sub("", docstring.rstrip("\n"))
    return f'{begin}"""{docstring}\n\n{sentence_of(path)}\n"""{rest}'


def _parsed(path):
    return ast.parse(path.read_text())


def _tasks(tree):
    return [
        node
        for node in tree.body
        if isinstance(node, ast.Assign)
        and isinstance(node.value, ast.Call)
        and getattr(node.value.func, "id", "") == "Task"
    ]


def _reached(nodes, names):
    reached, waiting = set(), list(nodes)
    while waiting:
        for node in ast.walk(waiting.pop()):
            if isinstance(node, ast.Name) and node.id in names and node.id not in reached:
                reached.add(node.id)
                waiting.append(names[node.id])
    return reached


def _listed(names):
    return ", ".join(f"`{name}`" for name in names) or "none"


if __name__ == "__main__" and sys.argv[1:] == ["--write"]:
    for module in map(Path, modules_of_tasks()):
        module.write_text(with_sentence(module))
