"""
Task 09.3: write the batch file for a cluster that is described.

On each rank: `_act`; in both: `_asked`. In the kernel: the rest.
"""

from functools import lru_cache
from random import Random

from ddp_lessons.checks.kit import Case, Mistake, Task, words
from ddp_lessons.launch import Cluster, rehearse
from ddp_lessons.pictures import holdings_picture

_FIRST = ((20, 32, 4, 16), (6, 48, 8, 8), (4, 16, 0, 3), (2, 24, 4, 2))
_PARTITIONS = ("long", "gpu", "main", "night")


def _cases(draw):
    yield Case(4, {"clusters": _FIRST}, seed=3)
    drawn = []
    for gpus in (draw.choice((2, 4, 8)), draw.choice((3, 4, 6)), 0, 4):
        nodes = draw.randint(3, 9)
        cores = max(gpus, 1) * draw.choice((6, 8, 12))
        ranks = max(gpus, 1) * draw.randint(2, nodes)
        drawn.append((nodes, cores, gpus, ranks))
    # The job has fewer ranks than a node has GPUs: these ranks share all cores of the node.
    nodes, cores, gpus, _ = drawn[3]
    drawn[3] = nodes, cores, gpus, draw.choice((1, 2))
    yield Case(4, {"clusters": drawn})
    yield Case(1, {"clusters": drawn[1:2]})


def _asked(case, rank):
    # Return the arguments of a rank: a description of a cluster, and a job.
    draw = Random(f"{case.seed} {rank}")
    nodes, cores, gpus, ranks = case["clusters"][rank]
    cluster = {
        "nodes": nodes,
        "cores": cores,
        "gpus": gpus,
        "partition": draw.choice(_PARTITIONS),
        "hours": 24,
    }
    minutes = draw.choice((20, 45, 90, 200, 1000))
    script = draw.choice(("train.py", "run.py", "finetune.py"))
    return cluster, {"ranks": ranks, "minutes": minutes, "script": script}


def _act(context, batch_file):
    context.call(batch_file, *_asked(context.case, context.rank))


@lru_cache(maxsize=64)
def _rehearsed(text, cluster):
    return rehearse(text, cluster)


class _Job:
    """
    The cluster and the job of a rank, and what its batch file would start.

    Args:
        view: The View of a rank that has returned a text.
    """

    def __init__(self, view):
        self.text = view.got
        self.cluster, self.job = _asked(view.case, view.rank)
        self.rehearsal = _rehearsed(self.text, Cluster(**self.cluster))
        self.wish, self.ranks = self.rehearsal.wish, self.rehearsal.ranks
        self.each = min(self.job["ranks"], self.cluster["gpus"] or 1)
        self.nodes = self.job["ranks"] // self.each
        self.threads = self.cluster["cores"] // self.each

    @property
    def on_nodes(self):
        """
        The number of ranks that would run on each node, as a list.
        """
        nodes = range(self.wish.nodes)
        return [sum(one.node == node for one in self.ranks) for node in nodes]


def _of_job(fact_of):
    """
    Return a `shows` that returns the fact of `fact_of(job)`, after the cluster and the job.
    """

    def shows(view):
        job = _Job(view)
        fact = fact_of(job)
        return fact and f"The cluster is {job.cluster}, the job {job.job}. {fact}"

    return shows


def _unread(job):
    # Find an option below the first command, where Slurm does not read options.
    lines = job.text.splitlines()
    commands = [at for at, line in enumerate(lines) if line.strip() and line.lstrip()[0] != "#"]
    asked = [line for line in lines[commands[0] :] if commands and line.startswith("#SBATCH")]
    known = job.wish.said if job.wish else {}
    unread = [line for line in asked if not any(name in line for name in known)]
    return unread and f"Slurm does not read this line: {unread[0]}"


def _fills_nodes(job):
    if job.wish and job.wish.nodes > job.cluster["nodes"] >= job.nodes:
        return f"The file asks for {job.wish.nodes} nodes."
    if job.rehearsal.refused or not job.ranks or len(job.ranks) != job.job["ranks"]:
        return ""
    told = f"There would be these ranks on its nodes: {job.on_nodes}."
    is_outside = any(one.is_outside for one in job.ranks)
    return not is_outside and set(job.on_nodes) != {job.each} and told


def _starts_none(job):
    outside = sum(one.is_outside for one in job.ranks)
    told = f"{outside} ranks would be started without srun." if outside else ""
    return told or (not job.ranks and "No rank would be started.")


def _starts_another_world(job):
    wanted = job.job["ranks"]
    pairs = sorted((one.rank, one.world_size) for one in job.ranks)
    right = [(rank, wanted) for rank in range(wanted)]
    return pairs != right and (
        f"There would be {len(pairs)} ranks. Each one and the world size that it would find: "
        f"{pairs[:4]} and so on."
    )


def _runs_something_else(job):
    other = [one.script for one in job.ranks if job.job["script"] not in one.script]
    return other and f"Ranks would run {words(list(other[0]))}."


def _asks_for_other_cores(job):
    cores = job.wish.cores_per_task * max(job.wish.tasks_per_node)
    share = job.threads * job.each
    is_whole = cores == share or "exclusive" in job.wish.said
    return not is_whole and (
        f"Its ranks would get {cores} cores of a node, and {share} are their shares."
    )


def _asks_for_other_gpus(job):
    got = job.wish.gpus_per_node
    return (
        job.cluster["gpus"]
        and got != job.each
        and (f"It would get {got} GPUs on a node, for {job.each} ranks.")
    )


def _asks_for_another_queue(job):
    got = job.wish.minutes
    if got != job.job["minutes"]:
        return f"Its limit is {'none' if got is None else f'{got:g} minutes'}."
    return job.wish.partition is None and "It names no partition."


def _has_other_threads(job):
    got = {one.threads for one in job.ranks} - {job.threads}
    return got and f"A rank would have {min(got, key=str)} threads; {job.threads} are its share."


def _draw(case_result):
    rows = []
    for seen in case_result.seen:
        described, _ = _asked(case_result.case, seen.rank)
        rehearsal = _rehearsed(seen.calls[0].result, Cluster(**described))
        rows.append(
            {
                "ranks": len(rehearsal.ranks),
                "nodes": rehearsal.wish.nodes,
                "ranks a node": max(rehearsal.wish.tasks_per_node),
                "threads a rank": rehearsal.ranks[0].threads,
            }
        )
    return holdings_picture(["ranks", "nodes", "ranks a node", "threads a rank"], rows)


batch_file = Task(
    number="09.3",
    name="batch_file",
    twice=True,
    cases=_cases,
    act=_act,
    ok="every rank once, on the fewest nodes, with its share of the cores",
    draw=_draw,
    hints=(
        "Reckon before you write: how many ranks fit on a node, how many nodes that makes, and how "
        "many cores each rank gets.",
        "Ranks of a node: as many as it has GPUs, or 1 without any; but never more than the job "
        "has. The cores of a node are shared among the ranks that are on it.",
        "Options for these numbers: --nodes, --ntasks-per-node, --cpus-per-task, --gpus-per-node; "
        "--time takes minutes. OMP_NUM_THREADS must be exported before srun.",
        "An f-string of lines: #!/bin/bash, the #SBATCH lines, export OMP_NUM_THREADS={threads}, "
        "srun python {script}.",
    ),
    mistakes=(
        Mistake(
            "no-text",
            "Return the whole file as one text, lines joined by line feeds.",
            shows=lambda view: not isinstance(view.got, str) and f"It returns {words(view.got)}.",
        ),
        Mistake(
            "unread",
            "Slurm reads #SBATCH lines above the first command only. Put all of them right below "
            "the first line, #!/bin/bash.",
            shows=_of_job(_unread),
        ),
        Mistake(
            "nodes",
            "As few nodes as can be: fill each with a rank for every GPU. Without a number of "
            "tasks a node, Slurm fills the first node with all that its cores have room for.",
            shows=_of_job(_fills_nodes),
        ),
        Mistake(
            "refused",
            "sbatch or the shell would stop there. Read the line that is named, and what the "
            "cluster has.",
            shows=_of_job(lambda job: job.rehearsal.refused),
        ),
        Mistake(
            "no-srun",
            "The batch file itself runs once, on the first node. srun starts what shall run as "
            "tasks, on all of them. #SBATCH lines only ask for room.",
            shows=_of_job(_starts_none),
        ),
        Mistake(
            "ranks",
            "The ranks do not make the one group that the job wants. Tasks are nodes times tasks a "
            "node; torchrun multiplies them by its processes, so it runs once on each node, and "
            "must know their number.",
            shows=_of_job(_starts_another_world),
        ),
        Mistake(
            "script",
            "Let srun start Python with the script that the job names.",
            shows=_of_job(_runs_something_else),
        ),
        Mistake(
            "cores",
            "A task gets 1 core unless you ask for more. Share all cores of a node among the ranks "
            "that are on it.",
            shows=_of_job(_asks_for_other_cores),
        ),
        Mistake(
            "gpus",
            "Slurm hides GPUs that nobody has asked for. Ask for one for each rank of a node, and "
            "for no more.",
            shows=_of_job(_asks_for_other_gpus),
        ),
        Mistake(
            "queue",
            "Name the partition, and the job's minutes as the limit: a number alone means minutes; "
            "with one colon, minutes and seconds.",
            shows=_of_job(_asks_for_another_queue),
        ),
        Mistake(
            "threads",
            "A rank's threads are its share of the node's cores. Export OMP_NUM_THREADS before "
            "srun: without it a rank takes as many as it sees, and under torchrun 1.",
            shows=_of_job(_has_other_threads),
        ),
        Mistake(
            "raised",
            "A cluster may have no GPU: then nothing can be divided by their number.",
        ),
        Mistake("forbidden", "Nobody has to be asked: write a text."),
    ),
    allowed=(),
)
