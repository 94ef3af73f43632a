"""
The runtime's table of clocks (its time limits and intervals): each is used, no other module defines
one, and a scale keeps their order.
"""

import ast
import re
import runpy

import pytest
from import_map import PACKAGE

from ddp_lessons.errors import BadInput
from ddp_lessons.ranks.system import clocks

ROOMS = PACKAGE / "ranks"
TABLE = ROOMS / "system" / "clocks.py"
TIME_NAMES = re.compile(r"_(S|MS|TURNS|POLLS|INTERRUPTS)$|MISSES|EVERY|TIMEOUT|PATIENCE", re.I)
WAITS = ("sleep", "wait", "join", "poll", "call_later", "timedelta", "LoadAwareTimeout")
"""
Functions and methods whose first argument is a number of seconds.
"""
NOT_STRETCHED = ("EVERY", "POLL", "TURNS", "CPU", "INTERRUPTS")

ORDER = (
    ("PATIENCE_LOOK_EVERY_S", "PATIENCE_LONGEST_GAP_S"),
    ("STALL_QUIET_S", "STALL_LOOK_EVERY_S", "DEADLOCK_S", "OWN_LIMIT_S"),
    ("DEADLOCK_S", "STALL_REPORT_S"),
    ("STALL_LOOK_EVERY_S", "CHANCE_REST_S"),
    ("STALL_ANSWER_S", "STALL_LOOK_EVERY_S", "STOP_ANSWER_S"),
    ("FREE_EVERY_S", "FREE_ASLEEP_S", "ALONE_ASLEEP_S", "JOIN_ASLEEP_S", "GROUP_UNKNOWN_S"),
    ("FREE_ASLEEP_S", "FREE_UNKNOWN_S", "GROUP_UNKNOWN_S"),
    ("FREE_ASLEEP_S", "RELEASE_ANSWER_S"),
    ("CELL_TICK_S", "PATIENCE_LONGEST_GAP_S", "NEWS_S"),
    ("POLITE_S", "SUPERVISOR_END_S", "CLUSTER_END_S"),
    ("REPLACE_S", "REPLACE_ELSEWHERE_S", "START_S", "REGISTER_S", "NEVER_S"),
    ("HOST_INFO_EVERY_S", "HOST_INFO_S"),
    ("SLURM_LOOK_EVERY_S", "SLURM_LOOK_SELDOM_S", "SLURM_SELDOM_AFTER_S"),
    ("SLURM_POLL_S", "SLURM_GONE_S", "SLURM_CAUSE_S", "SLURM_COMMAND_S"),
    ("RANK_MISSES", "ELSEWHERE_MISSES", "HERE_MISSES"),
)
"""
Sequences of limits that must not decrease: an interval between polls must not exceed the limit that
is judged by them, and a process that waits for another's limit needs a longer one.
"""


def names_in_the_table():
    """
    Return the names of all clocks, in the table's order.
    """
    body = ast.parse(TABLE.read_text()).body
    names = [node.targets[0].id for node in body if isinstance(node, ast.Assign)]
    return [name for name in names if not name.startswith("SCALE")]


def table_at(scale, monkeypatch):
    """
    Return {name: value} of the table in a process whose scale is set.
    """
    monkeypatch.setenv(clocks.SCALE_VARIABLE, str(scale))
    table = runpy.run_path(str(TABLE))
    return {name: table[name] for name in names_in_the_table()}


def _is_bare_number(node):
    """
    Return whether a value is made of numbers alone, perhaps by a call, and reads no name of a
    limit.
    """
    parts = list(ast.walk(node))
    callees = [part.func for part in parts if isinstance(part, ast.Call)]
    numbers = [part.value for part in parts if isinstance(part, ast.Constant)]
    reads = [part for part in parts if isinstance(part, ast.Name) and part not in callees]
    return not reads and any(type(number) in (int, float) and number for number in numbers)


def _name_of(node):
    return getattr(node, "attr", getattr(node, "id", ""))


def _named_values(node):
    """
    Yield (name, value) of each assignment, parameter default or keyword argument in a node.
    """
    if isinstance(node, ast.Assign):
        for target in node.targets:
            yield from ((_name_of(part), node.value) for part in ast.walk(target))
    elif isinstance(node, ast.AnnAssign):
        yield _name_of(node.target), node.value
    elif isinstance(node, ast.arguments):
        named = (*node.posonlyargs, *node.args)[-len(node.defaults) :] if node.defaults else ()
        defaults = (*node.defaults, *node.kw_defaults)
        for arg, value in zip((*named, *node.kwonlyargs), defaults, strict=True):
            if value is not None:
                yield arg.arg, value
    elif isinstance(node, ast.Call):
        yield from ((keyword.arg or "", keyword.value) for keyword in node.keywords)


def clocks_in(source):
    """
    Return the time limits that a module writes as bare numbers, each as "line: text".
    """
    found = []
    for node in ast.walk(ast.parse(source)):
        values = [value for name, value in _named_values(node) if TIME_NAMES.search(name)]
        if isinstance(node, ast.Call) and _name_of(node.func) in WAITS:
            values += node.args[:1]
        bare = filter(_is_bare_number, filter(None, values))
        found += [f"{value.lineno}: {ast.unparse(value)}" for value in bare]
    return sorted(set(found))


def test_every_clock_of_the_table_is_used():
    """
    Every limit of the table is used, because a change of an unused one would have no effect.
    """
    text = "\n".join(path.read_text() for path in ROOMS.rglob("*.py") if path != TABLE)
    used = set(re.findall(r"\bclocks\.([A-Z_]+)\b", text))
    assert sorted(used - {"SCALE", "SCALE_VARIABLE"}) == sorted(names_in_the_table())


def test_no_module_has_a_clock_of_its_own():
    """
    No other module defines a time limit, because a limit elsewhere has no documented reason and is
    not scaled.
    """
    found = [
        f"{path.relative_to(PACKAGE.parent)}:{each}"
        for path in sorted(ROOMS.rglob("*.py"))
        if path != TABLE
        for each in clocks_in(path.read_text())
    ]
    assert not found, (
        "numbers that stand for time: give each a name with its unit and a reason in "
        f"ddp_lessons/ranks/system/clocks.py, and read it as clocks.NAME (got {found})"
    )


@pytest.mark.parametrize(
    "source",
    [
        "_DEADLOCK_S = 0.55",
        "_LIMITS_S = {'join': 10.0}",
        "_MISSES_HERE, _MISSES_ELSEWHERE = 1200, 15",
        "class RankProcesses:\n    _replace_s = 60.0",
        "LOOK_EVERY: float = 1",
        "time.sleep(0.01)",
        "process.wait(timeout=5)",
        "self._started.wait(5.0)",
        "RankEngine.instance(timeout=3600.0)",
        "def start(n=None, *, timeout_s=60.0):\n    pass",
        "def start(n, timeout_s=60.0):\n    pass",
        "patience = LoadAwareTimeout(2 * 0.5, pids)",
        "max_heartbeat_misses = Integer(8, config=True)",
    ],
)
def test_a_clock_of_ones_own_is_found(source):
    """
    The search finds every form of a bare time limit, so the rule above can fail.
    """
    assert len(clocks_in(source)) == 1


@pytest.mark.parametrize("scale", [1, 1.3, 20])
def test_limits_keep_their_order_at_every_scale(scale, monkeypatch):
    """
    The limits keep their order at every scale. A limit that exceeds the one that waits for it would
    turn a slow machine into a fault.
    """
    table = table_at(scale, monkeypatch)
    for names in ORDER:
        values = [table[name] for name in names]
        assert values == sorted(values), dict(zip(names, values, strict=True))


def test_scale_stretches_patience_and_nothing_else(monkeypatch):
    """
    The scale lengthens timeouts only. Poll intervals decide no verdict, and load uses up neither
    turns nor CPU time.
    """
    once, twice = table_at(1, monkeypatch), table_at(2, monkeypatch)
    stretched = {name for name in once if twice[name] != once[name]}
    assert {name: twice[name] for name in stretched} == {n: 2 * once[n] for n in stretched}
    assert {"DEADLOCK_S", "STALL_REPORT_S", "SUPERVISOR_END_S", "RANK_MISSES"} <= stretched
    assert not [name for name in stretched if any(word in name for word in NOT_STRETCHED)]
    assert table_at(1.3, monkeypatch)["SSH_KNOCK_S"] == 3  # ssh takes whole seconds


@pytest.mark.parametrize("text", ["0.5", "0", "-1", "nan", "inf", "twice"])
def test_scale_that_stretches_nothing_is_refused(text):
    """
    A scale below 1 is refused, because the runtime would judge by one poll.
    """
    with pytest.raises(BadInput) as refused:
        clocks.scale_of({clocks.SCALE_VARIABLE: text})
    assert str(refused.value) == (
        f"Wrong setting: DDP_LESSONS_CLOCK_SCALE must be a number from 1 on (got {text!r}). "
        "Unset it, or set it to 2 for twice the patience on a slow machine."
    )


def test_scale_that_is_not_set_is_one():
    """
    An unset or empty variable means a scale of 1.
    """
    assert clocks.scale_of({}) == clocks.scale_of({clocks.SCALE_VARIABLE: ""}) == 1.0
