"""
Task 09.1: find a process's place in the variables that any launcher has set.

On each rank: `_of_each`, `_act`; in both: `_mine`, `_environs`. In the kernel: the rest.
"""

from copy import copy
from dataclasses import replace

from ddp_lessons.checks.kit import VALUES, Case, Expected, Mistake, Task
from ddp_lessons.checks.kit.on_rank.patched_environ import redefine, told
from ddp_lessons.checks.launch.worlds import SIMULATED_LAUNCHERS, made_up_world
from ddp_lessons.pictures import holdings_picture

_NUMBERS = ("rank", "world_size", "local_rank")
KEYS = (*_NUMBERS, "address", "port")
_SLURM = ("SLURM_PROCID", "SLURM_NTASKS", "SLURM_LOCALID")
_WORDS = (
    "RANK", "WORLD_SIZE", "LOCAL_RANK", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE",
    "OMPI_COMM_WORLD_LOCAL_RANK", *_SLURM, "SLURM_JOB_ID", "SLURM_JOB_NODELIST", "MASTER_ADDR",
    "MASTER_PORT",
)  # fmt: skip
# The variables of os.environ during a call. No process of a case has such a place.
_ELSEWHERE = {word: str(9001 + number) for number, word in enumerate(_WORDS)}
_SAID_ELSEWHERE = {*_ELSEWHERE.values(), "2" + _ELSEWHERE["SLURM_JOB_ID"]}  # and that job's port


def _cases(draw):
    # The seed decides how Slurm's list of machines is written. Each of five ways occurs once.
    yield Case(4, seed=5)
    for number, world_size in enumerate((1, 2, 3, 4), start=1):
        yield Case(world_size, seed=5 * draw.randrange(10**5) + number)


def _mine(case, rank, launcher):
    # The case's ranks stand for some ranks of a larger job, also for ranks of its last machine.
    world = made_up_world(case.seed, launcher)
    return world[(rank * 5 + case.seed + 3) % len(world)]


def _environs(case, rank):
    return {launcher: _mine(case, rank, launcher)[0] for launcher in SIMULATED_LAUNCHERS}


def _of_each(find_place):
    return lambda environs: {name: copy(find_place(environ)) for name, environ in environs.items()}


def _act(context, find_place):
    with told(_ELSEWHERE) as changed_names:
        context.call(_of_each(find_place), _environs(context.case, context.rank))
        changed = changed_names()
    with told(_ELSEWHERE):
        anew = redefine(find_place, "find_place")
        context.call(_of_each(anew), _environs(context.case, context.rank))
    return changed


def _gave(view):
    """
    Return for each launcher those of the five values that the answer gave.
    """
    return {
        launcher: {key: got[key] for key in KEYS if key in got} if isinstance(got, dict) else {}
        for launcher, got in view.seen.calls[0].result.items()
    }


def _first_off(view):
    """
    Return the first launcher with a wrong place, its environment, and {key: wrong value}.
    """
    for launcher, right in view.expected.items():
        got = view.got[launcher]
        if off := {key: value for key, value in got.items() if value != right[key]}:
            return launcher, _environs(view.case, view.rank)[launcher], off
    return "", {}, {}


def _is_no_number(view):
    values = [item for got in view.got.values() for item in got.items()]
    return any(type(value) is not int for key, value in values if key != "address")


def _is_outer(view):
    launcher, environ, off = _first_off(view)
    words = zip(_NUMBERS, _SLURM, strict=True)
    return " in " in launcher and any(str(off.get(key)) == environ.get(w) for key, w in words)


def _is_own(view):
    _, _, off = _first_off(view)
    is_of_rank = (off.get("rank"), off.get("world_size")) == (view.rank, view.case.world_size)
    return is_of_rank or any(str(value) in _SAID_ELSEWHERE for value in off.values())


def _is_told(view):
    _, environ, off = _first_off(view)
    words = {"address": "MASTER_ADDR", "port": "MASTER_PORT"}
    return any(words[key] in environ for key in {*off} - {*_NUMBERS})


def _draw(case_result):
    shown = ("torchrun", "mpiexec", "srun", "torchrun in srun", "nobody")
    rows = [
        {name: f"{places[name]['rank']} of {places[name]['world_size']}" for name in shown}
        for places in (seen.calls[0].result for seen in case_result.seen)
    ]
    return holdings_picture(shown, rows)


find_place = Task(
    number="09.1",
    name="find_place",
    twice=True,
    cases=_cases,
    act=_act,
    ok="torchrun, mpiexec, srun, one inside the other, and nobody",
    draw=_draw,
    hints=(
        "The words of a launcher are there only if it has started the process. So ask which are "
        "there, and in which order you ask.",
        "What was started last counts: torchrun or mpiexec inside a job of Slurm, not Slurm. "
        "Without any of the three you are rank 0 of 1.",
        "Find the three numbers first. Then the address and the port: what MASTER_ADDR and "
        "MASTER_PORT say, and what the rules below the table say where they are missing.",
        "A loop over three rows (rank, size and local word), the first of them with "
        "`if rank_word in environ:`; and environ.get('MASTER_ADDR', first_of_the_list).",
    ),
    expected=Expected(
        lambda case, rank: {name: vars(_mine(case, rank, name)[1]) for name in SIMULATED_LAUNCHERS},
        gave=_gave,
    ),
    mistakes=(
        Mistake(
            "environment",
            "Only read `environ`, and leave os.environ alone: it tells this process its own place.",
            shows=lambda view: (
                view.output and f"It changes os.environ, in {', '.join(view.output)}."
            ),
        ),
        Mistake(
            "text",
            "The environment holds texts. Of the numbers, make numbers: int(...).",
            "Some rank, world_size, local_rank or port is no whole number.",
            shows=_is_no_number,
        ),
        Mistake(
            "outer",
            "Two launchers have left their words here. Slurm's are those of the process that "
            "started the other launcher: go by the one that started this process.",
            shows=_is_outer,
        ),
        Mistake(
            "own",
            "That is the place of the notebook's rank, or what os.environ says there. Read what "
            "`environ` says, and nothing else.",
            shows=_is_own,
        ),
        Mistake(
            "local",
            "The local rank has a word of its own. It counts the processes of one machine.",
            shows=lambda view: [*_first_off(view)[2]] == ["local_rank"],
        ),
        Mistake(
            "told",
            "MASTER_ADDR and MASTER_PORT are there, so somebody has decided. They count, whichever "
            "launcher it is, and each by itself.",
            shows=_is_told,
        ),
        Mistake(
            "hosts",
            "Only srun's ranks meet on a machine of SLURM_JOB_NODELIST: the first, with all its "
            "digits, as n[07-09] begins with n07. All others meet on their own, 127.0.0.1.",
            shows=lambda view: "address" in _first_off(view)[2],
        ),
        Mistake(
            "port",
            "Where nobody tells a port, it is 29500; but under srun it follows from SLURM_JOB_ID, "
            "as the task says, so that two jobs do not meet.",
            shows=lambda view: "port" in _first_off(view)[2],
        ),
        replace(
            VALUES,
            hint="Return a dictionary with the five keys, also if nobody has told anything. Its "
            "three numbers are in the words of the launcher: the table has them.",
        ),
        Mistake(
            "early",
            "What the cell reads when it runs is the environment of the notebook's rank at that "
            "moment. Read `environ`, in the function, and nothing else.",
            "It gives something else when its cell has run while os.environ said something else.",
            shows=lambda view: view.seen.calls[0].result != view.seen.calls[1].result,
        ),
        Mistake(
            "raised",
            "A word that you read is not there under this launcher. Ask with `in` or get() before "
            "you read.",
        ),
    ),
    allowed=(),
)
