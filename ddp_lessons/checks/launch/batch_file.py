"""
Task 09.3: write the batch file for a cluster that is described.
"""

from functools import lru_cache
from random import Random

from ddp_lessons.checks.kit import Case, Task
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
    # Fewer ranks than a node has GPUs: their cores are shared among the ranks that there are.
    nodes, cores, gpus, _ = drawn[3]
    drawn[3] = nodes, cores, gpus, draw.choice((1, 2))
    yield Case(4, {"clusters": drawn})
    yield Case(1, {"clusters": drawn[1:2]})


def _asked(case, rank):
    # What a rank asks for: a cluster and a job.
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


def _act(here, batch_file):
    here.call(batch_file, *_asked(here.case, here.rank))


@lru_cache(maxsize=64)
def _rehearsed(text, cluster):
    return rehearse(text, cluster)


def _judge(played):
    for seen in played.seen:
        _judge_file(played, seen.rank, seen.calls[0].result)


def _judge_file(played, rank, text):
    described, job = _asked(played.case, rank)
    if not isinstance(text, str):
        raise played.wrong("no-text", rank, got=text, fact="It must return the file as one text.")
    rehearsal = _rehearsed(text, Cluster(**described))
    told = f"The cluster is {described}, the job {job}."
    if unread := _unread(text, rehearsal.wish):
        raise played.wrong("unread", rank, fact=f"Slurm does not read this line: {unread}")
    wish = rehearsal.wish
    each = min(job["ranks"], described["gpus"] or 1)
    nodes, threads = job["ranks"] // each, described["cores"] // each
    if wish is not None and wish.nodes > described["nodes"] >= nodes:
        fact = f"{told} The file asks for {wish.nodes} nodes."
        raise played.wrong("nodes", rank, fact=fact)
    if rehearsal.refused:
        raise played.wrong("refused", rank, fact=f"{told} {rehearsal.refused}")
    ranks = rehearsal.ranks
    inside = [one for one in ranks if not one.is_outside]
    if len(inside) < len(ranks):
        fact = f"{told} {len(ranks) - len(inside)} ranks would be started without srun."
        raise played.wrong("no-srun", rank, fact=fact)
    if not ranks:
        raise played.wrong("nothing-started", rank, fact=f"{told} No rank would be started.")
    on_nodes = {node: sum(one.node == node for one in ranks) for node in range(wish.nodes)}
    shape = f"{told} There would be these ranks on its nodes: {list(on_nodes.values())}."
    if len(ranks) != job["ranks"]:
        raise played.wrong("ranks", rank, got=len(ranks), expected=job["ranks"], fact=shape)
    if sorted(one.rank for one in ranks) != [*range(job["ranks"])] or any(
        one.world_size != job["ranks"] for one in ranks
    ):
        pairs = sorted((one.rank, one.world_size) for one in ranks)
        fact = f"{shape} Each rank and the world size that it would find: {pairs[:4]} and so on."
        raise played.wrong("numbers", rank, fact=fact)
    if set(on_nodes.values()) != {each}:
        mistake = "nodes" if len(on_nodes) != nodes else "uneven"
        raise played.wrong(mistake, rank, fact=shape)
    if any(job["script"] not in one.script for one in ranks):
        both = {"got": list(ranks[0].script), "expected": job["script"]}
        raise played.wrong("script", rank, **both, fact=f"{told} Ranks would run something else.")
    _judge_wish(played, rank, wish, described, job, each, told)
    got = {one.threads for one in ranks}
    if got != {threads}:
        both = {"got": sorted(got, key=str)[0], "expected": threads}
        mistake = "no-threads" if None in got else "threads"
        fact = f"{told} These are the threads that a rank would have."
        raise played.wrong(mistake, rank, **both, fact=fact)


def _unread(text, wish):
    # The first option that stands below a command, where Slurm does not look for one.
    lines = text.splitlines()
    commands = [at for at, line in enumerate(lines) if line.strip() and line.lstrip()[0] != "#"]
    below = lines[commands[0] :] if commands else []
    asked = [line for line in below if line.startswith("#SBATCH")]
    known = wish.said if wish else {}
    return next((line for line in asked if not any(name in line for name in known)), None)


def _judge_wish(played, rank, wish, described, job, each, told):
    cores = wish.cores_per_task * max(wish.tasks_per_node)
    share = described["cores"] // each * each
    if cores != share and "exclusive" not in wish.said:
        fact = f"{told} Its ranks would get {cores} cores of a node, and {share} are their shares."
        raise played.wrong("cores", rank, fact=fact)
    if described["gpus"] and wish.gpus_per_node != each:
        both = {"got": wish.gpus_per_node, "expected": each}
        raise played.wrong("gpus", rank, **both, fact=f"{told} These are its GPUs on a node.")
    if wish.minutes != job["minutes"]:
        both = {"got": wish.minutes, "expected": job["minutes"]}
        raise played.wrong("time", rank, **both, fact=f"{told} These are its minutes.")
    if wish.partition is None:
        raise played.wrong("partition", rank, fact=f"{told} It names no partition.")


def _draw(played):
    rows = []
    for seen in played.seen:
        described, _ = _asked(played.case, seen.rank)
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
    judge=_judge,
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
    mistakes={
        "no-text": "Return the whole file as one text, lines joined by line feeds.",
        "refused": "sbatch or the shell would stop there. Read the line that is named, and what "
        "the cluster has.",
        "unread": "Slurm reads #SBATCH lines above the first command only. Put all of them right "
        "below the first line, #!/bin/bash.",
        "no-srun": "The batch file itself runs once, on the first node. srun starts what shall "
        "run as tasks, on all of them.",
        "nothing-started": "The #SBATCH lines only ask for room. A line below must start the "
        "ranks.",
        "ranks": "The job wants another number of ranks. Tasks are nodes times tasks a node; "
        "torchrun multiplies them by its processes.",
        "numbers": "The ranks do not make one group. One torchrun a node must know the number of "
        "nodes, and run once on each.",
        "nodes": "As few nodes as can be: fill each with a rank for every GPU.",
        "uneven": "Without a number of tasks a node, Slurm fills the first node with all that its "
        "cores have room for. Say how many tasks a node gets.",
        "script": "Let srun start Python with the script that the job names.",
        "cores": "A task gets 1 core unless you ask for more. Share all cores of a node among the "
        "ranks that are on it.",
        "gpus": "Slurm hides GPUs that nobody has asked for. Ask for one for each rank of a node, "
        "and for no more.",
        "time": "The limit is to be the job's minutes. A number alone means minutes; with one "
        "colon, minutes and seconds.",
        "partition": "Name the partition: a cluster's own choice may be another queue.",
        "no-threads": "Nobody says how many threads a rank may use, and so each takes as many as "
        "it sees. Export OMP_NUM_THREADS.",
        "threads": "A rank's threads are its share of the node's cores. If you left it to "
        "torchrun, it chose 1.",
        "raised": "A cluster may have no GPU: then nothing can be divided by their number.",
        "forbidden": "Nobody has to be asked: write a text.",
    },
    allowed=(),
)
