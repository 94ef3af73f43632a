"""
The script of a notebook: its cells with the tag "script", as a person would have written it.

A script has no `%%px`, so `main` itself joins a process group first, and leaves it at the end.
Imports go to the top, functions and classes before `main`, and all other lines into `main`, in
their order and with their comments.
"""

import ast
import symtable
import sys
import textwrap
from pathlib import Path

from ddp_lessons.course.notebooks.canonical import read_notebook
from ddp_lessons.course.notebooks.cell_roles import SCRIPT, numbered, tags_of
from ddp_lessons.course.notebooks.notebook_paths import choose, find_course
from ddp_lessons.course.notebooks.text_twins import read_twin
from ddp_lessons.errors import BadInput

_MAGIC = "%%px"
_INDENT = " " * 4
_NEEDED = ("import torch", "import torch.distributed as dist")
_JOIN = 'dist.init_process_group("nccl" if torch.cuda.is_available() else "gloo")'
_LEAVE = "dist.destroy_process_group()"


def read_script(name):
    """
    Return the script of a notebook.

    Args:
        name: Path of a notebook, with its ending or without, or of a text twin; or a lesson id such
            as 09_launch, which means the lesson of the course, or the exercise if there is no such
            lesson.

    Raises:
        BadInput: There is no such notebook, or its cells make no script.
        NotebookRefused: The file is no notebook.
    """
    path = next((one for one in (Path(name), Path(f"{name}.ipynb")) if one.is_file()), None)
    if path is None:
        try:
            path = choose(find_course(), [name])[0].text
        except BadInput:
            raise BadInput(
                f"Unknown notebook: expected a file, or a lesson such as 09_launch (got {name!r}). "
                "Name the file as it is called from here: notebooks/Untitled.ipynb."
            ) from None
    notebook = read_twin(path) if path.suffix == ".py" else read_notebook(path)
    return script_of(notebook, path.stem)


def script_of(notebook, stem):
    """
    Return the text of the script that the tagged cells of a notebook make.

    Args:
        notebook: A notebook of nbformat 4.
        stem: The notebook's name, for the script's first lines and for messages.

    Raises:
        BadInput: No cell has the tag; or a cell with the tag is no `%%px` cell, or no Python; or a
            function reads a variable of `main`.
    """
    imports, functions, lines = _Imports(), [], []
    for number, cell in numbered(notebook, "code"):
        if SCRIPT not in tags_of(cell):
            continue
        where = f"{stem}, cell {number}"
        block: list[str] = []
        for nodes, start, text in _statements(cell["source"], where):
            if isinstance(nodes[0], ast.Import | ast.ImportFrom):
                for node in nodes:
                    imports.add(node)
            elif isinstance(nodes[0], ast.FunctionDef | ast.ClassDef):
                functions.append((where, nodes[0], "\n".join(text).strip("\n")))
            else:
                block += _indented(nodes, start, text)
        while block and not block[0]:
            del block[0]
        if block:
            lines += [*([""] if lines else []), *block]
    if not lines:
        raise BadInput(
            f"No script: expected cells of {stem} with the tag {SCRIPT!r} that do something "
            "(got none). Tag the cells that train."
        )
    for needed in _NEEDED:
        imports.add(ast.parse(needed).body[0])
    _refuse_shared(functions, lines, imports.names)
    head = f'"""\nMade of the cells of {stem} that have the tag "{SCRIPT}".\n"""'
    body = ["def main():", f"{_INDENT}{_JOIN}", *lines, f"{_INDENT}{_LEAVE}"]
    end = f'if __name__ == "__main__":\n{_INDENT}main()\n'
    parts = [text for _, _, text in functions]
    return f"{head}\n\n{imports}\n\n\n" + "\n\n\n".join([*parts, "\n".join(body), end])


def _statements(source, where):
    """
    Return (nodes, number of their first line, their lines) for each statement of a cell, or for
    several that share a line.

    The comments above a statement belong to its lines; those below the last one, to the last one's.
    """
    first, _, body = source.partition("\n")
    if first.strip() != _MAGIC:
        raise BadInput(
            f"{where}, no cell for a script: expected {_MAGIC} as its first line (got {first!r}). "
            "What runs in the kernel alone has no place in a rank."
        )
    try:
        nodes = ast.parse(body).body
    except SyntaxError as error:
        line = body.splitlines()[(error.lineno or 1) - 1]
        raise BadInput(
            f"{where}, no Python: expected a cell without other magics (got {line!r}). Mend it."
        ) from None
    lines, found, start, shared = body.splitlines(), [], 0, []
    for node, after in zip(nodes, [*nodes[1:], None], strict=True):
        shared.append(node)
        if after is not None and after.lineno == node.end_lineno:
            continue
        if len({_destination(each) for each in shared}) > 1:
            raise BadInput(
                f"{where}, an import beside something else: expected a line of its own for each "
                f"(got {lines[node.lineno - 1]!r}). Break the line."
            )
        end = len(lines) if after is None else node.end_lineno
        found.append((shared, start, lines[start:end]))
        start, shared = end, []
    return found


def _destination(node):
    return "the top" if isinstance(node, ast.Import | ast.ImportFrom) else "main"


def _indented(nodes, start, lines):
    # Lines inside a multi-line string must not be indented: that would change the string.
    inside = {
        number
        for node in nodes
        for part in ast.walk(node)
        if isinstance(part, ast.JoinedStr)
        or (isinstance(part, ast.Constant) and isinstance(part.value, str | bytes))
        for number in range(part.lineno, part.end_lineno or part.lineno)
    }
    return [
        line if number in inside or not line.strip() else _INDENT + line
        for number, line in enumerate(lines, start=start)
    ]


class _Imports:
    """
    The imports of a script, each written once, in three groups: Python's, others', the course's.
    """

    def __init__(self):
        self._plain: set[str] = set()
        self._from: dict[str, set[str]] = {}
        self.names: set[str] = set()

    def add(self, node):
        for alias in node.names:
            told = alias.name + (f" as {alias.asname}" if alias.asname else "")
            self.names.add(alias.asname or alias.name.partition(".")[0])
            if isinstance(node, ast.Import):
                self._plain.add(told)
            else:
                module = "." * node.level + (node.module or "")
                self._from.setdefault(module, set()).add(told)

    def __str__(self):
        parts: list[list[str]] = [[], [], []]
        for told in sorted(self._plain):
            parts[_part(told)].append(f"import {told}")
        for module, names in sorted(self._from.items()):
            line = f"from {module} import {', '.join(sorted(names))}"
            if len(line) > 88:
                inside = textwrap.indent(",\n".join(sorted(names)), _INDENT)
                line = f"from {module} import (\n{inside},\n)"
            parts[_part(module)].append(line)
        return "\n\n".join("\n".join(part) for part in parts if part)


def _part(name):
    root = name.partition(".")[0].partition(" ")[0]
    if root in sys.stdlib_module_names:
        return 0
    return 2 if root == "ddp_lessons" else 1


def _refuse_shared(functions, lines, imported):
    # In cells, all names are global. In the script, the names that main assigns are local to it.
    source = "def main():\n" + "\n".join([*lines, f"{_INDENT}pass"])
    (main,) = symtable.symtable(source, "main", "exec").get_children()
    made = {symbol.get_name() for symbol in main.get_symbols() if symbol.is_local()}
    both = made & (imported | {node.name for _, node, _ in functions})
    if both:
        raise BadInput(
            f"Two things of one name: expected another name in the cells (got {min(both)!r}, "
            "imported or defined, and assigned too). Rename one."
        )
    for where, node, text in functions:
        read = _read_names(symtable.symtable(text, where, "exec")) & made
        if read:
            raise BadInput(
                f"{where}, {node.name}: expected a function that gets what it needs (got one that "
                f"reads {min(read)!r}, which main makes). Make it an argument."
            )


def _read_names(table):
    is_top = table.get_type() == "module"
    found = {
        symbol.get_name()
        for symbol in table.get_symbols()
        if symbol.is_referenced() and (is_top or symbol.is_global())
    }
    return found.union(*map(_read_names, table.get_children()))
