"""
The map of the package: its subpackages from top to bottom, and which of them import which others.

    python tests/support/import_map.py            print the map
    python tests/support/import_map.py --write    put it into CONTRIBUTING.md
"""

import ast
import functools
import sys

from paths import ROOT

PACKAGE = ROOT / "ddp_lessons"
PAGE = ROOT / "CONTRIBUTING.md"
BEGIN, END = (
    "<!-- drawn by tests/support/import_map.py -->\n```\n",
    "```\n<!-- end of the drawing -->",
)

_NAME_COLUMNS = 18


@functools.cache
def imported_names(source, module):
    """
    Return the dotted name of everything that a source imports, also inside functions.

    Imports that only a type checker sees (`if TYPE_CHECKING:`) are left out: they never run.

    Args:
        source: Python source text.
        module: The source's dotted name, from which relative imports start; a package ends in
            `.__init__`.
    """
    names, tree = [], ast.parse(source)
    unseen = {
        inner
        for node in ast.walk(tree)
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"
        for inner in ast.walk(node)
    }
    for node in ast.walk(tree):
        if node in unseen:
            continue
        if isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            parent = module.split(".")[: -node.level] if node.level else []
            base = ".".join([*parent, *([node.module] if node.module else [])])
            names += [f"{base}.{alias.name}" for alias in node.names]
    return names


def package_modules():
    """
    Yield the dotted name and the source of every module but the top one, which may import all.
    """
    for path in sorted(PACKAGE.rglob("*.py")):
        module = ".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts)
        if module != "ddp_lessons.__init__":
            yield module, path.read_text()


def arrows(depth, inside=""):
    """
    Return {part: set of the parts that it imports}, for the package or for one subpackage.

    Args:
        depth: The position in a dotted name that distinguishes the parts: 1 for subpackages of the
            package, 2 for those below `inside`.
        inside: The subpackage whose parts are compared, or "" for the package.
    """
    folder = PACKAGE / inside
    parts = {path.parent.name for path in folder.glob("*/__init__.py")}
    found: dict = {part: set() for part in parts}
    for module, source in package_modules():
        at = module.split(".")
        if len(at) <= depth or at[depth] not in parts or (inside and at[1] != inside):
            continue
        for name in imported_names(source, module):
            to = name.split(".")
            is_near = to[0] == "ddp_lessons" and (not inside or to[1:2] == [inside])
            if is_near and len(to) > depth and to[depth] in parts - {at[depth]}:
                found[at[depth]].add(to[depth])
    return found


def from_the_top(targets):
    """
    Return the parts in an order in which each stands above its imports; parts of one height by
    name.
    """
    heights: dict = {}

    def height(part):
        if part not in heights:
            heights[part] = 1 + max(map(height, targets[part]), default=0)
        return heights[part]

    return sorted(targets, key=lambda part: (-height(part), part))


def straight(targets):
    """
    Return {part: its imports}, without those that follow from others: if A imports B, and B imports
    C, then A -> C is left out.
    """

    def below(part):
        return targets[part].union(*map(below, targets[part]))

    return {
        part: found - set().union(*map(below, found)) if found else set()
        for part, found in targets.items()
    }


def picture():
    """
    Return the map as text: one subpackage a line with its parts below it. Folders of checks are
    left out.
    """
    lines = []
    for entry in from_the_top(entries := arrows(1)):
        lines += _lines(entry, "", straight(entries)[entry])
        folders = arrows(2, entry)
        for folder in from_the_top(folders):
            if entry != "checks" or folder == "kit":
                lines += _lines(f"{entry}/{folder}", "  ", straight(folders)[folder])
    return "".join(line + "\n" for line in lines)


def _lines(path, indent, below):
    folder = PACKAGE / path
    said = ast.get_docstring(ast.parse((folder / "__init__.py").read_text())) or ""
    name = f"{indent}{folder.name}/"
    arrow = f"  on {', '.join(sorted(below))}" if below else ""
    first = said.split("\n", 1)[0]
    return [
        f"{name + ' ':{_NAME_COLUMNS}}{first}",
        *([f"{'':{_NAME_COLUMNS}}{arrow}"] if arrow else []),
    ]


def page_with_picture(text):
    """
    Return the text of a page with the current map in it.
    """
    before, _, rest = text.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}{picture()}{END}{after}"


if __name__ == "__main__":
    if sys.argv[1:] == ["--write"]:
        PAGE.write_text(page_with_picture(PAGE.read_text()))
    else:
        print(picture(), end="")
