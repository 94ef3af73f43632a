"""
Rehearse a batch file without a cluster: run it, with `srun` and `python` played by others.

The file is run by its own shell, as the batch step of a job is, with the variables that Slurm sets.
`srun`, `python` and `torchrun` note that they were started and with what, and do nothing. What srun
would start is then reckoned for each of its tasks. So a rehearsal says which ranks there would be,
where, and with how many threads. It needs no Slurm, and no node.

Legend: a node is a machine; a task is a process that `srun` starts.
"""

import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path

from ..errors import BadInput
from .batch import Cluster, Wish, read_options, refusal, split_options, wish_of
from .environment import place_of

JOB_ID = 4711
_LIMIT_S = 10.0
_PROGRAMS = ("python", "python3", "torchrun", "mpiexec", "mpirun", "srun")
_MOST_RANKS = 4096


@dataclass(frozen=True)
class Rank:
    """
    Hold a rank that a job would start.

    Args:
        rank: Its number.
        world_size: How many it expects.
        node: Its machine, counted from 0.
        threads: Its threads; None: nobody says.
        is_outside: Whether no srun has started it, so that it runs on the first node alone.
        script: What it runs, and with which arguments.
    """

    rank: int
    world_size: int
    node: int
    threads: int | None
    is_outside: bool
    script: tuple[str, ...]


@dataclass(frozen=True)
class Rehearsal:
    """
    Hold what would become of a batch file.

    Args:
        refused: Why Slurm or the shell would not have it, or None.
        wish: The Wish, or None if its options cannot be read.
        ranks: A Rank for each process of Python.
    """

    refused: str | None
    wish: Wish | None = None
    ranks: tuple[Rank, ...] = ()


def rehearse(text: str, cluster: Cluster) -> Rehearsal:
    """
    Say what would come of a batch file on a cluster.

    Args:
        text: The file.
        cluster: The Cluster.

    Returns:
        Rehearsal: It runs nothing but the shell's own lines.

    Lesson: 09_launch, task 09.3.
    """
    try:
        wish = wish_of(read_options(text), cluster)
        reason = refusal(wish, cluster)
        if reason:
            return Rehearsal(f"Slurm would refuse it: {reason}.", wish)
        with tempfile.TemporaryDirectory(prefix="ddp-lessons-batch-") as folder:
            notes = _play(text, wish, Path(folder))
            ranks = [rank for note in notes for rank in _ranks_of(note, wish, Path(folder))]
    except BadInput as error:
        return Rehearsal(str(error))
    return Rehearsal(None, wish, tuple(ranks))


def _play(text, wish, folder):
    """
    Run the file with played programs, and return what these have noted: (words, environment).
    """
    for name in ("bin", "notes"):
        (folder / name).mkdir()
    for name, player in {**dict.fromkeys(_PROGRAMS, _PLAYER), "scontrol": _SCONTROL}.items():
        program = folder / "bin" / name
        program.write_text(player.replace("NAME", name))
        program.chmod(0o700)
    batch = folder / "batch.sh"
    batch.write_text(text)
    shell = text.splitlines()[0].removeprefix("#!").split() or ["none"]
    done = _run([*shell, str(batch)], _environ(wish, folder), folder)
    if done.returncode:
        said = (done.stderr.strip().splitlines() or ["nothing"])[-1].replace(f"{batch}: ", "")
        raise BadInput(
            f"A file that fails: expected exit code 0 (got {done.returncode}, {said!r}). Mend it."
        )
    return _take_notes(folder)


def _run(words, environ, folder):
    try:
        return subprocess.run(
            words,
            cwd=folder,
            env=environ,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=_LIMIT_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise BadInput(
            f"No end: expected that {words[0]} runs its lines within {_LIMIT_S:g} s (got "
            f"{type(error).__name__}). Mend the first line, or the loop."
        ) from None


_PLAYER = """\
#!/bin/sh
printf '%s\\0' NAME "$@" > "$REHEARSAL/$$.words"
env -0 > "$REHEARSAL/$$.environ"
"""

_SCONTROL = """\
#!/bin/sh
# scontrol show hostnames
for n in $(seq "$SLURM_NNODES"); do echo "n$n"; done
"""


def _take_notes(folder):
    """
    Return what the players have noted, and forget it.
    """
    notes = []
    for path in sorted((folder / "notes").glob("*.words")):
        words, environ = path.read_text(), path.with_suffix(".environ").read_text()
        pairs = [line.partition("=") for line in environ.split("\0") if line]
        notes.append((words.split("\0")[:-1], {name: value for name, _, value in pairs}))
        path.unlink()
        path.with_suffix(".environ").unlink()
    return notes


def _environ(wish, folder):
    """
    Return what the batch step of a job finds in its environment.
    """
    said = wish.said
    words = {
        "SLURM_JOB_ID": JOB_ID,
        "SLURM_JOB_NAME": said.get("job-name", "batch.sh"),
        "SLURM_JOB_NODELIST": f"n[1-{wish.nodes}]" if wish.nodes > 1 else "n1",
        "SLURM_JOB_NUM_NODES": wish.nodes,
        "SLURM_NNODES": wish.nodes,
        "SLURM_NTASKS": wish.num_tasks,
        "SLURM_PROCID": 0,
        "SLURM_LOCALID": 0,
        "SLURM_NODEID": 0,
        "SLURMD_NODENAME": "n1",
        "SLURM_CPUS_ON_NODE": wish.cores_per_task * max(wish.tasks_per_node),
        "SLURM_SUBMIT_DIR": folder,
        "HOME": folder,
        "PATH": f"{folder / 'bin'}:/usr/local/bin:/usr/bin:/bin",
        "REHEARSAL": folder / "notes",
    }
    for option, name in (
        ("ntasks-per-node", "SLURM_NTASKS_PER_NODE"),
        ("cpus-per-task", "SLURM_CPUS_PER_TASK"),
        ("gpus-per-node", "SLURM_GPUS_PER_NODE"),
    ):
        if option in said:
            words[name] = said[option]
    if wish.gpus_per_node:
        words["SLURM_GPUS_ON_NODE"] = wish.gpus_per_node
    return {name: str(value) for name, value in words.items()}


def _ranks_of(note, wish, folder):
    """
    Return the ranks that one started program stands for.
    """
    words, environ = note
    if words[0] != "srun":
        return _ranks_of_program(words, environ, node=0, is_outside=True)
    options, command = split_options(words[1:])
    step = wish_of(options, above=wish)
    if step.num_tasks > _MOST_RANKS or step.nodes > wish.nodes or not command:
        raise BadInput(
            f"No step: expected a command on at most {wish.nodes} nodes after srun's options (got "
            f"{' '.join(words)!r}). Mend that line."
        )
    ranks, number = [], 0
    for node, num_tasks in enumerate(step.tasks_per_node):
        for local in range(num_tasks):
            own = environ | {
                "SLURM_PROCID": str(number),
                "SLURM_LOCALID": str(local),
                "SLURM_NODEID": str(node),
                "SLURMD_NODENAME": f"n{node + 1}",
                "SLURM_NTASKS": str(step.num_tasks),
                "SLURM_NNODES": str(step.nodes),
            }
            ranks += _ranks_of_task(command, own, node, folder)
            number += 1
    return ranks


def _ranks_of_task(command, environ, node, folder):
    if command[0] in _PROGRAMS:
        return _ranks_of_program(command, environ, node)
    # Something between, such as a shell: it says itself what it starts.
    done = _run(command, environ, folder)
    if done.returncode:
        raise BadInput(
            f"A step that fails: expected exit code 0 of {command[0]!r} (got {done.returncode}). "
            "Mend what srun starts."
        )
    return [
        rank for words, own in _take_notes(folder) for rank in _ranks_of_program(words, own, node)
    ]


def _ranks_of_program(words, environ, node, *, is_outside=False):
    program, *rest = words
    if program.startswith("python"):
        if rest[:2] == ["-m", "torch.distributed.run"]:
            return _ranks_of_torchrun(rest[2:], environ, node, is_outside)
        place = place_of(environ)
        return [
            Rank(
                place.rank,
                place.world_size,
                node,
                _threads(environ),
                is_outside,
                tuple(rest),
            )
        ]
    if program == "torchrun":
        return _ranks_of_torchrun(rest, environ, node, is_outside)
    raise BadInput(
        f"No launcher for this: expected srun, torchrun or python (got {program!r}). Start the "
        "ranks by srun."
    )


def _ranks_of_torchrun(words, environ, node, is_outside):
    given = {"nnodes": "1", "nproc-per-node": "1"}
    while words and words[0].startswith("-"):
        name, has_value, value = words[0].lstrip("-").replace("_", "-").partition("=")
        words = words[1:]
        if not has_value and name not in ("standalone", "m", "module", "no-python"):
            value, words = (words or [""])[0], words[1:]
        given[name] = value
    nodes, each = (given[name].rpartition(":")[2] for name in ("nnodes", "nproc-per-node"))
    if not (nodes.isdecimal() and each.isdecimal() and int(each) <= _MOST_RANKS):
        raise BadInput(
            f"No numbers: expected those of nodes and of processes a node (got {nodes!r} and "
            f"{each!r}). Give torchrun --nnodes and --nproc-per-node."
        )
    if int(nodes) > 1 and "rdzv-endpoint" not in given and "master-addr" not in given:
        raise BadInput(
            f"No meeting place: expected --rdzv-endpoint for {nodes} nodes (got none). Name the "
            "first machine of the job."
        )
    num = int(each)
    first = (0 if int(nodes) == 1 else node) * num
    threads = _threads(environ) or (1 if num > 1 else None)  # torchrun's own default
    return [
        Rank(first + local, num * int(nodes), node, threads, is_outside, tuple(words))
        for local in range(num)
    ]


def _threads(environ):
    value = environ.get("OMP_NUM_THREADS", "")
    return int(value) if value.isdecimal() else None
