"""
A batch file: what one wants from a cluster, and how the ranks are started there.

Slurm reads the `#SBATCH` lines above the first command, and decides. The rest is a script of the
shell, which runs once, on the first machine that the job gets. It starts the ranks by `srun`.

Legend: a node is a machine; a task is a process that `srun` starts.
"""

import math
import re
import shlex
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from ..errors import BadInput

_PREFIX = "#SBATCH"
_SHORT = {
    "-N": "nodes", "-n": "ntasks", "-c": "cpus-per-task", "-t": "time", "-p": "partition",
    "-J": "job-name", "-o": "output", "-e": "error", "-G": "gpus",
}  # fmt: skip
_NUMBERS = ("nodes", "ntasks", "ntasks-per-node", "cpus-per-task", "gpus-per-node")
_KNOWN = (
    *_NUMBERS, "time", "partition", "gres", "gpus", "gpus-per-task", "job-name", "output", "error",
    "exclusive", "requeue", "no-requeue", "signal", "mem", "mem-per-cpu", "open-mode", "export",
    "account", "comment", "chdir", "hint", "cpu-bind", "mail-type", "mail-user", "kill-on-bad-exit",
    "label", "unbuffered",
)  # fmt: skip
_NO_LIMIT = 1_000_000
_FLAGS = ("exclusive", "requeue", "no-requeue", "label", "unbuffered")


@dataclass(frozen=True)
class Cluster:
    """
    Describe a cluster whose nodes are alike.

    Args:
        nodes: How many machines.
        cores: Cores of each.
        gpus: GPUs of each, or 0.
        partition: The name of the queue.
        hours: The longest that a job may take there.
    """

    nodes: int
    cores: int
    gpus: int
    partition: str
    hours: int


@dataclass
class Wish:
    """
    Hold what a batch file asks for, as Slurm understands it.

    Args:
        nodes: Machines.
        tasks_per_node: Tasks on each of them, a list.
        cores_per_task: Cores of each task.
        gpus_per_node: GPUs on each machine.
        minutes: The longest that it may take; None: as long as the queue allows.
        partition: The queue; None: the cluster's own choice.
        said: The options as they stand in the file, by their long names.
    """

    nodes: int
    tasks_per_node: list[int]
    cores_per_task: int
    gpus_per_node: int
    minutes: float | None
    partition: str | None
    said: dict[str, str] = field(default_factory=dict)

    @property
    def num_tasks(self) -> int:
        """
        Tasks of the whole job.
        """
        return sum(self.tasks_per_node)


def batch_text(
    cluster: Cluster, ranks: int, minutes: float, script: str, *, name: str = "train"
) -> str:
    """
    Write a batch file for a cluster: a rank a GPU, or a rank a node where there are none.

    Args:
        cluster: The Cluster.
        ranks: How many ranks; a multiple of those that fill a node, or fewer than these.
        minutes: The longest that the job may take.
        script: The Python script, which finds its place by itself, such as by `place_of`.
        name: The name of the job.

    Returns:
        str: The file. Hand it to sbatch.

    Source: documentation of sbatch and srun. Lesson: 09_launch, task 09.3.
    """
    per_node = min(ranks, cluster.gpus or 1)
    threads = cluster.cores // per_node
    options = {
        "job-name": name,
        "partition": cluster.partition,
        "nodes": math.ceil(ranks / per_node),
        "ntasks-per-node": per_node,
        "cpus-per-task": threads,
        "time": int(minutes),
        "output": f"{name}-%j.txt",
    }
    if cluster.gpus:
        options["gpus-per-node"] = per_node
    lines = [f"{_PREFIX} --{key}={value}" for key, value in options.items()]
    return "\n".join(
        [
            "#!/bin/bash",
            *lines,
            f"export OMP_NUM_THREADS={threads}",
            # since Slurm 22.05, srun does not take it over from sbatch by itself
            f"srun --cpus-per-task={threads} python {shlex.quote(str(script))}",
            "",
        ]
    )


def read_options(text: str) -> dict[str, str]:
    """
    Return the options of a batch file by their long names, as strings.

    Only lines above the first command count, as for sbatch.

    Raises:
        BadInput: sbatch would refuse the file: no `#!` line, or an option that it does not know.
    """
    lines = text.splitlines()
    if not lines or not lines[0].startswith("#!"):
        raise BadInput(
            "No batch file: expected #! and a shell in the first line (got "
            f"{(lines or [''])[0]!r}). Begin it with #!/bin/bash."
        )
    words = []
    for line in lines[1:]:
        if line.strip() and not line.lstrip().startswith("#"):
            break
        if line.startswith(_PREFIX):
            words += shlex.split(line.removeprefix(_PREFIX), comments=True)
    options, rest = split_options(words)
    if rest:
        raise BadInput(f"No option: expected --name=value (got {rest[0]!r}). Mend that line.")
    return options


def split_options(words: Iterable[str]) -> tuple[dict[str, str], list[str]]:
    """
    Return the options at the front of a command's words, and the words after them.

    Args:
        words: Such as ["-n", "2", "--label", "python", "train.py"].

    Raises:
        BadInput: An option is unknown, or has no value.
    """
    options, words = {}, list(words)
    while words and words[0].startswith("-") and words[0] != "-":
        word = words.pop(0)
        name, _, value = word.partition("=")
        if name in _SHORT or (not name.startswith("--") and name[:2] in _SHORT):
            name, value = _SHORT[name[:2]], value or name[2:]
        else:
            name = name.removeprefix("--")
        if name not in _KNOWN:
            raise BadInput(
                f"Unknown option: expected one of Slurm's (got {word!r}). Correct its name."
            )
        if not value and name not in _FLAGS:
            if not words:
                raise BadInput(f"No value: expected one for {word} (got none). Add it.")
            value = words.pop(0)
        options[name] = value
    return options, words


def wish_of(
    options: Mapping[str, str], cluster: Cluster | None = None, above: Wish | None = None
) -> Wish:
    """
    Return what options ask for, with Slurm's own rules for what they leave out.

    Without a number of tasks a node, Slurm fills one node after the other: of 4 tasks on 2 nodes
    with room for 4 each, the first gets 3.

    Args:
        options: As `read_options` returns them.
        cluster: The Cluster, which says how many tasks fit on a node.
        above: The Wish of the job, for a step of it that srun starts; None: it is the job.

    Raises:
        BadInput: A value is no number, or two options contradict each other.
    """
    given = {name: _count(options, name) for name in _NUMBERS if name in options}
    per_node, num_tasks = given.get("ntasks-per-node"), given.get("ntasks")
    nodes = given.get("nodes") or (above.nodes if above else None)
    if per_node is None and num_tasks is None and above is not None:
        tasks = [1] * given["nodes"] if "nodes" in given else list(above.tasks_per_node)
    else:
        room = per_node or _room(options, given, cluster)
        if above and num_tasks and not per_node:
            room = math.ceil(num_tasks / nodes)  # a step is shared out evenly
        if nodes is None:
            nodes = math.ceil(num_tasks / room) if num_tasks else 1
        tasks = _shared_out(num_tasks or (per_node or 1) * nodes, nodes, room)
    return Wish(
        nodes=len(tasks),
        tasks_per_node=tasks,
        cores_per_task=given.get("cpus-per-task", 1),
        gpus_per_node=_gpus(options, given, tasks),
        minutes=minutes_of(options["time"]) if "time" in options else None,
        partition=options.get("partition"),
        said=dict(options),
    )


def _count(options, name):
    value = options[name]
    least = 0 if name == "gpus-per-node" else 1
    if not value.isdecimal() or int(value) < least:
        raise BadInput(
            f"No number: expected one from {least} for --{name} (got {value!r}). Mend it."
        )
    return int(value)


def _room(options, given, cluster):
    # Tasks that fit on a node.
    if cluster is None:
        return _NO_LIMIT
    room = cluster.cores // given.get("cpus-per-task", 1)
    if "gpus-per-task" in options:
        room = min(room, cluster.gpus // _count(options, "gpus-per-task"))
    return max(room, 1)


def _shared_out(num_tasks, nodes, room):
    if not nodes <= num_tasks <= room * nodes:
        raise BadInput(
            f"Tasks that do not fit: expected {nodes} to {room * nodes} of them on {nodes} nodes "
            f"(got {num_tasks}). Make the options agree."
        )
    tasks, left = [], num_tasks
    for after in reversed(range(nodes)):
        tasks.append(min(room, left - after))  # one is left for each node that follows
        left -= tasks[-1]
    return tasks


def _gpus(options, given, tasks):
    if "gpus-per-node" in given:
        return given["gpus-per-node"]
    if "gres" in options:
        match = re.fullmatch(r"gpu(?::[a-z]\w*)?(?::(\d+))?", options["gres"])
        if match is None:
            raise BadInput(
                f"No GPUs: expected --gres=gpu:N (got {options['gres']!r}). Mend it, or use "
                "--gpus-per-node."
            )
        return int(match[1] or 1)
    if "gpus-per-task" in options:
        return _count(options, "gpus-per-task") * max(tasks)
    if "gpus" in options:
        return math.ceil(_count(options, "gpus") / len(tasks))
    return 0


def minutes_of(time: str) -> float:
    """
    Return the minutes of a time as Slurm writes it: 90, 90:00, 1:30:00, 0-1:30, 0-1:30:00.

    Raises:
        BadInput: It is no such time.
    """
    match = re.fullmatch(r"(?:(\d+)-)?(\d+)(?::(\d+))?(?::(\d+))?", time)
    if match is None:
        raise BadInput(f"No time: expected hours:minutes:seconds (got {time!r}). Mend it.")
    days, *rest = match.groups()
    if days is not None:
        hours, minutes, seconds = (int(part or 0) for part in rest)
        return 24 * 60 * int(days) + 60 * hours + minutes + seconds / 60
    parts = [int(part) for part in rest if part is not None]
    if len(parts) < 3:
        return parts[0] + (parts[1] / 60 if parts[1:] else 0)
    return 60 * parts[0] + parts[1] + parts[2] / 60


def refusal(wish: Wish, cluster: Cluster) -> str | None:
    """
    Return why a cluster would not run a job, or None if it would.
    """
    busiest = max(wish.tasks_per_node)
    limit, hours = (wish.minutes or 0) / 60, cluster.hours
    reasons = (
        (wish.nodes > cluster.nodes, f"it asks for {wish.nodes} nodes, and there are "
         f"{cluster.nodes}"),
        (busiest * wish.cores_per_task > cluster.cores, f"{busiest} tasks of "
         f"{wish.cores_per_task} cores need {busiest * wish.cores_per_task} on a node, and it has "
         f"{cluster.cores}"),
        (wish.gpus_per_node > cluster.gpus, f"it asks for {wish.gpus_per_node} GPUs on a node, "
         f"which has {cluster.gpus}"),
        (limit > hours, f"it asks for {limit:g} hours, and {hours} are the most"),
        (wish.partition not in (None, cluster.partition), f"there is no partition "
         f"{wish.partition!r}"),
    )  # fmt: skip
    return next((reason for is_so, reason in reasons if is_so), None)
