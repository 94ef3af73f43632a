"""
Imports point one way, so that each part can be read without the parts after it.
"""

import import_map
import pytest
from import_map import PACKAGE, imported_names, package_modules

LAYERS = (
    "errors", "whole", "files", "private", "jobs", "costs", "trace", "pictures", "process_group",
    "collectives", "ring", "samplers", "replicas", "ddp", "accumulation", "checkpoint", "launch",
    "hangs", "speed", "metrics", "sharded_optimizer", "workloads", "asynchronous", "beyond_ddp",
    "frameworks", "many_machines", "progress", "ranks", "checks", "course",
)  # fmt: skip
"""
The subpackages and modules of ddp_lessons, from the bottom to the top. Each may import itself and
those before it.
"""

MACHINERY = ("private", "jobs", "trace", "pictures", "progress", "ranks", "checks", "course")
SUBJECTS = tuple(entry for entry in LAYERS if entry not in (*MACHINERY, "errors", "whole", "files"))
"""
The subpackages that a learner reads as a textbook. They contain no notebook machinery and no
plotting.
"""

FORBIDDEN = {
    **{entry: {"IPython", "ipyparallel", "matplotlib"} for entry in SUBJECTS},
    "pictures": {"torch"},
    "course.classroom.board": {"torch", "IPython", "ipyparallel", "matplotlib"},
}
FORBIDDEN["costs"] = FORBIDDEN["costs"] | {"torch"}

FOLDERS = {
    "ranks": ("messages", "system", "rank", "supervisor", "diagnosis", "kernel"),
    "course": ("notebooks", "rules", "building", "doctor", "learner", "classroom"),
}
"""
The folders of a subpackage, from the bottom to the top. Each may import itself and those before it.
A module outside of these folders may import all of them, and no module in a folder may import it.
"""
MOST_MODULES = 16  # in a folder, without its __init__
MOST_LINES = 320  # in a module


def faults(source, module):
    """
    Return the faults of one module's imports, as sentences.
    """
    entry = module.split(".")[1]
    if entry not in LAYERS:
        return [f"{module} is no entry of the package: give it a place in LAYERS"]
    allowed = LAYERS[: LAYERS.index(entry) + 1]
    wrong = []
    for name in imported_names(source, module):
        root, _, rest = name.partition(".")
        if any(root in names for part, names in FORBIDDEN.items() if _is_in(module, part)):
            wrong.append(f"{module} must not import {root}")
        target = rest.partition(".")[0]
        if root == "ddp_lessons" and target not in (*allowed, "__version__"):
            wrong.append(f"{module} must not import {name}: it may import {', '.join(allowed)}")
    return wrong + _faults_of_folders(source, module)


def _is_in(module, part):
    return f"{module}.".startswith(f"ddp_lessons.{part}.")


def _faults_of_folders(source, module):
    entry, *inside = module.split(".")[1:]
    if entry == "checks" and len(inside) > 1:
        folders = ("kit", inside[0])  # no lesson's checks need another lesson's
    else:
        folders = FOLDERS.get(entry, ())
    if not folders or len(inside) < 2:
        return []
    allowed = folders[: folders.index(inside[0]) + 1]
    return [
        f"{module} must not import {name}: its folder may import {', '.join(allowed)}"
        for name in imported_names(source, module)
        if name.startswith(f"ddp_lessons.{entry}.") and name.split(".")[2] not in allowed
    ]


def circles(sources):
    """
    Return the modules that import each other in a circle, also inside functions.

    Args:
        sources: {dotted name without `.__init__`: (source, full name)} of all modules.
    """
    targets = {}
    for module, (source, full) in sources.items():
        names = imported_names(source, full)
        found = {name if name in sources else name.rpartition(".")[0] for name in names}
        targets[module] = found & sources.keys() - {module}
    while alone := [module for module, found in targets.items() if not found]:
        for module in alone:
            del targets[module]
        for found in targets.values():
            found.difference_update(alone)
    # The modules left are in a circle or import one. Those that no other module imports are not in
    # it.
    while outside := targets.keys() - set().union(*targets.values()):
        for module in outside:
            del targets[module]
    return sorted(targets)


def test_package_imports_point_one_way():
    """
    Imports point one way, because a chapter that needs a later one cannot be read in order.
    """
    modules = list(package_modules())
    assert modules
    found = [fault for module, source in modules for fault in faults(source, module)]
    assert not found, "\n".join(found)


def test_package_has_no_circles():
    """
    No modules import each other in a circle, because neither could be read first.
    """
    modules = {name.removesuffix(".__init__"): (text, name) for name, text in package_modules()}
    assert circles(modules) == []
    one = {"ddp_lessons.a": ("from ddp_lessons import b", "ddp_lessons.a")}
    other = {"ddp_lessons.b": ("def f():\n    from ddp_lessons.a import x", "ddp_lessons.b")}
    third = {"ddp_lessons.c": ("import ddp_lessons.a", "ddp_lessons.c")}
    assert circles(one | other | third) == ["ddp_lessons.a", "ddp_lessons.b"]
    assert circles(one | third) == []
    typed = {"ddp_lessons.b": ("if TYPE_CHECKING:\n    from ddp_lessons import a", "ddp_lessons.b")}
    assert circles(one | typed) == []


def test_package_has_no_crowded_folder():
    """
    No folder has more than MOST_MODULES modules, so that a reader can survey it.
    """
    for folder in {path.parent for path in PACKAGE.rglob("*.py")}:
        modules = [path for path in folder.glob("*.py") if path.stem != "__init__"]
        assert len(modules) <= MOST_MODULES, folder


def test_package_has_no_endless_module():
    """
    No module has more than MOST_LINES lines, so that a reader keeps its subject in mind.
    """
    lengths = {name: len(source.splitlines()) for name, source in package_modules()}
    long = [f"{name}: {length} lines" for name, length in lengths.items() if length > MOST_LINES]
    assert not long, f"split, {MOST_LINES} lines are the most: {', '.join(long)}"


def test_picture_of_the_house_is_as_the_imports_are():
    """
    The map in CONTRIBUTING.md agrees with the imports, because an old one would mislead its reader.
    """
    text = import_map.PAGE.read_text()
    assert import_map.BEGIN in text
    assert import_map.END in text
    assert import_map.page_with_picture(text) == text, (
        "run: python tests/support/import_map.py --write"
    )


def test_picture_of_the_house_has_the_layers_in_their_order():
    """
    The map lists subpackages from the top, each above its imports. An import that follows from two
    others is left out.
    """
    names = [line.split("/")[0] for line in import_map.picture().splitlines() if line[0] != " "]
    assert sorted(names) == sorted(set(LAYERS) - {"errors", "files", "whole"}), (
        "run: python tests/support/import_map.py --write"
    )
    assert names[0] == "course"
    assert names.index("ring") < names.index("collectives")
    assert names.index("trace") < names.index("private")
    targets = {"a": {"b", "c"}, "b": {"c"}, "c": set(), "d": set()}
    assert import_map.from_the_top(targets) == ["a", "b", "c", "d"]
    assert import_map.straight(targets) == {"a": {"b"}, "b": {"c"}, "c": set(), "d": set()}


def test_package_without_torch_stays_without():
    """
    Pictures and costs import torch neither directly nor through other modules, because they must
    work where it is not installed.
    """
    sources = dict(package_modules())
    for entry in ("costs", "pictures"):
        seen, waiting = set(), [m for m in sources if m.split(".")[1] == entry]
        while waiting:
            module = waiting.pop()
            if module in seen:
                continue
            seen.add(module)
            for name in imported_names(sources[module], module):
                assert name.partition(".")[0] != "torch", f"{entry} reaches torch by {module}"
                waiting += [m for m in sources if m in (name, name.rpartition(".")[0])]


@pytest.mark.parametrize(
    ("module", "source", "fault"),
    [
        ("ddp_lessons.ring", "from ddp_lessons.ranks import start_ranks", "must not import"),
        ("ddp_lessons.ring", "from ddp_lessons import ranks", "must not import"),
        ("ddp_lessons.ring", "import ddp_lessons.ranks.system.json_pipe", "must not import"),
        ("ddp_lessons.ring", "from . import ranks", "must not import"),
        ("ddp_lessons.trace.events", "from ..ranks import link", "must not import"),
        ("ddp_lessons.ring", "def draw():\n    import matplotlib.pyplot", "must not import matp"),
        ("ddp_lessons.ddp", "from IPython.display import SVG", "must not import IPython"),
        ("ddp_lessons.pictures.svg", "from torch import tensor", "must not import torch"),
        ("ddp_lessons.costs", "import torch", "must not import torch"),
        ("ddp_lessons.costs", "import ipyparallel", "must not import ipyparallel"),
        ("ddp_lessons.course.classroom.board.app", "import torch", "must not import torch"),
        ("ddp_lessons.ring", "from ddp_lessons import start_ranks", "must not import"),
        ("ddp_lessons.stray", "", "no entry"),
        (
            "ddp_lessons.ranks.rank.rank_agent",
            "from ddp_lessons.ranks.supervisor import controller_app",
            "its folder",
        ),
        ("ddp_lessons.ranks.system.json_pipe", "import ddp_lessons.ranks.kernel", "its folder"),
        (
            "ddp_lessons.course.rules.reading_time",
            "from ddp_lessons.course import cli",
            "its folder",
        ),
        ("ddp_lessons.checks.ring.rings", "import ddp_lessons.checks.ddp.scripts", "its folder"),
        ("ddp_lessons.checks.kit.hints", "from ddp_lessons.checks import ring", "its folder"),
    ],
)
def test_faults_finds_what_points_the_wrong_way(module, source, fault):
    """
    Each kind of import in the wrong direction is found, so the rule above can fail.
    """
    assert any(fault in found for found in faults(source, module))


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("ddp_lessons.ring", "import torch\nfrom ddp_lessons.costs import ring_bytes"),
        (
            "ddp_lessons.ranks.kernel.launchers.supervised",
            "import ipyparallel\nfrom .. import supervisor_client\nfrom ....errors import X",
        ),
        ("ddp_lessons.course.cli", "from ddp_lessons import __version__"),
        ("ddp_lessons.trace.__init__", "from .events import Event"),
    ],
)
def test_faults_lets_the_right_way_be(module, source):
    """
    Allowed imports pass, because a rule that rejects good code is soon switched off.
    """
    assert faults(source, module) == []
