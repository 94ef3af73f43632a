"""
Task 09.1: find a process's place in what any launcher has told it.
"""

from ddp_lessons.checks.kit import Case, Task
from ddp_lessons.checks.kit.inside.environment import defined_anew, told
from ddp_lessons.checks.launch.worlds import LAUNCHERS, made_up_world
from ddp_lessons.pictures import holdings_picture

KEYS = ("rank", "world_size", "local_rank", "address", "port")
_ELSEWHERE = {
    # what os.environ says meanwhile: no process of a case is there
    "RANK": "9001",
    "WORLD_SIZE": "9002",
    "LOCAL_RANK": "9003",
    "OMPI_COMM_WORLD_RANK": "9004",
    "OMPI_COMM_WORLD_SIZE": "9005",
    "OMPI_COMM_WORLD_LOCAL_RANK": "9006",
    "SLURM_PROCID": "9007",
    "SLURM_NTASKS": "9008",
    "SLURM_LOCALID": "9009",
    "SLURM_JOB_ID": "9010",
    "SLURM_JOB_NODELIST": "elsewhere",
    "MASTER_ADDR": "elsewhere",
    "MASTER_PORT": "9011",
}
_SAID_ELSEWHERE = {*_ELSEWHERE.values(), "29010"}  # the port of that job of Slurm


def _cases(draw):
    # The seed decides how lists of machines are written: each way once.
    yield Case(4, seed=5)
    for number, world_size in enumerate((1, 2, 3, 4), start=1):
        yield Case(world_size, seed=5 * draw.randrange(10**5) + number)


def _mine(case, rank, launcher):
    # Ranks of the case are some ranks of a larger job, those of its last machine among them.
    world = made_up_world(case.seed, launcher)
    return world[(rank * 5 + case.seed + 3) % len(world)]


def _act(here, find_place):
    changed = []
    for launcher in LAUNCHERS:
        environ, _ = _mine(here.case, here.rank, launcher)
        with told(_ELSEWHERE) as changed_names:
            here.call(find_place, environ)
            changed.append(changed_names())
    for launcher in LAUNCHERS:
        environ, _ = _mine(here.case, here.rank, launcher)
        with told(_ELSEWHERE):
            here.call(defined_anew(find_place, "find_place"), environ)
    return changed


def _judge(played):
    for number, launcher in enumerate(LAUNCHERS):
        for seen in played.seen:
            environ, place = _mine(played.case, seen.rank, launcher)
            if names := seen.kept[number]:
                fact = f"It changes os.environ, in {', '.join(names)}."
                raise played.wrong("environment", seen.rank, fact=fact)
            got = seen.calls[number].result
            _judge_place(played, seen, launcher, environ, place, got)
            if seen.calls[len(LAUNCHERS) + number].result != got:
                fact = f"Started by: {launcher}. It gives something else when its cell has run "
                fact += "while os.environ said something else."
                raise played.wrong("early", seen.rank, fact=fact)


def _judge_place(played, seen, launcher, environ, place, got):
    rank, expected = seen.rank, vars(place)
    fact = f"Started by: {launcher}."
    if not isinstance(got, dict) or not set(KEYS) <= got.keys():
        fact += f" It must return a dictionary with the keys {', '.join(KEYS)}."
        raise played.wrong("keys", rank, got=got, fact=fact)
    got = {key: got[key] for key in KEYS}
    if got == expected and all(type(got[key]) is type(expected[key]) for key in KEYS):
        return
    both = {"got": got, "expected": expected}
    wrong = [key for key in KEYS if got[key] != expected[key]]
    if all(str(got[key]) == str(expected[key]) for key in KEYS):
        raise played.wrong("text", rank, **both, fact=fact)
    numbers = [key for key in wrong if key not in ("address", "port")]
    raise played.wrong(_name(played, launcher, environ, got, numbers, wrong, seen), rank, **both,
                       fact=f"{fact} Not right: {', '.join(wrong)}.")  # fmt: skip


def _name(played, launcher, environ, got, numbers, wrong, seen):
    values = {key: str(got[key]) for key in KEYS}
    if any(values[key] in _SAID_ELSEWHERE for key in wrong):
        return "own"
    slurm = [environ.get(name) for name in ("SLURM_PROCID", "SLURM_NTASKS", "SLURM_LOCALID")]
    if numbers:
        if " in " in launcher and any(
            values[key] == word and key in numbers for key, word in zip(KEYS, slurm, strict=False)
        ):
            return "outer"
        if (got["rank"], got["world_size"]) == (seen.rank, played.case.world_size):
            return "own"
        if launcher.startswith("nobody"):
            return "nobody"
        if numbers == ["local_rank"]:
            return "local"
        return "numbers"
    told = environ.get("MASTER_ADDR"), environ.get("MASTER_PORT")
    if told[0] is not None or (told[1] is not None and "port" in wrong):
        return "told"
    if "address" in wrong:
        return "hosts" if launcher.startswith("srun") else "address"
    return "port"


def _draw(played):
    rows = []
    for seen in played.seen:
        places = [call.result for call in seen.calls[: len(LAUNCHERS)]]
        rows.append(
            {
                name: f"{place['rank']} of {place['world_size']}"
                for name, place in zip(LAUNCHERS, places, strict=True)
            }
        )
    shown = ("torchrun", "mpiexec", "srun", "torchrun in srun", "nobody")
    return holdings_picture(shown, rows)


find_place = Task(
    number="09.1",
    name="find_place",
    twice=True,
    cases=_cases,
    act=_act,
    judge=_judge,
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
    mistakes={
        "keys": "Return a dictionary with the five keys of the task, also if nobody has told "
        "anything.",
        "text": "The environment holds texts. Of the numbers, make numbers: int(...).",
        "outer": "Two launchers have left their words here. Slurm's are those of the process that "
        "started the other launcher: go by the one that started this process.",
        "own": "That is the place of the notebook's rank, or what os.environ says there. Read what "
        "`environ` says, and nothing else.",
        "early": "What the cell reads when it runs is the environment of the notebook's rank at "
        "that moment. Read `environ`, in the function, and nothing else.",
        "environment": "This process has been told its own place. Only read `environ`, and leave "
        "os.environ alone.",
        "nobody": "Without a launcher a process is alone: rank 0 of 1.",
        "local": "The local rank has a word of its own. It counts the processes of one machine.",
        "numbers": "Take rank and world size from the words of the launcher: the table has them.",
        "told": "MASTER_ADDR and MASTER_PORT are there, so somebody has decided. They count, "
        "whichever launcher it is, and each by itself.",
        "hosts": "SLURM_JOB_NODELIST is a list, written short. Its first machine is wanted, with "
        "all its digits: n[07-09] begins with n07.",
        "address": "Under mpiexec, and alone, nobody names a machine: it is this one, 127.0.0.1. "
        "So it is inside a job of Slurm, too.",
        "port": "Where nobody tells a port, it is 29500; but under srun it follows from "
        "SLURM_JOB_ID, as the task says, so that two jobs do not meet.",
        "raised": "A word that you read is not there under this launcher. Ask with `in` or get() "
        "before you read.",
        "forbidden": "Nobody has to be asked: all of it is in environ.",
        "input-changed": "Only read environ. Another process may still need it as it is.",
    },
    allowed=(),
)
