"""
Jobs for task 15.4, and the seconds of a step, computed as by answers that forget a part of it.

Legend: d x t x p ranks, for data, tensor and pipeline; M micro-batches.
"""

from ddp_lessons.beyond_ddp.mesh import Job, held_bytes, meshes, step_s
from ddp_lessons.costs import Link

CLOSE = 1e-6
"""
The relative error that is allowed in seconds. Adding in another order gives a smaller error, and
every mistake a larger one.
"""

MISTAKES = (
    "bubble", "compute-whole", "activations-of-all", "micro-batches", "calls-of-all-layers",
    "calls-once", "half-the-calls", "gradients-whole", "one-message", "pipe-of-one", "all-inside",
    "all-between", "links-by-size", "pipe-by-size", "data-by-size", "no-latency", "latency-once",
    "bytes-once", "slowest-only",
)  # fmt: skip
"""
Names of what an answer may forget. It may forget several, but only one is named.
"""


def job_of(plain):
    """
    Return the Job for a task's dictionary.
    """
    links = {name: Link(*plain[name]) for name in ("inside", "between")}
    return Job(**{**plain, **links})


def draw_job(draw, num_ranks, ranks_per_host, fits_from):
    """
    Draw a job in which every part of a step matters.

    Args:
        draw: A random.Random.
        num_ranks: Number of ranks, a power of two.
        ranks_per_host: A smaller power of two.
        fits_from: The number of ranks t p from which on the state fits into memory. If no mesh has
            that many, no mesh is possible.
    """
    memory = draw.randint(30, 80) * 10**9
    state = int(memory * fits_from * draw.uniform(0.7, 0.95))
    num_layers = 2 ** draw.randint(2, 3) * draw.choice((3, 5, 7))
    speed = draw.uniform(0.5, 2) * 1e11
    alone = draw.uniform(2, 6) * state / 1e9
    # With these activations, the four sums of a layer take about as long as the rest.
    activations = draw.uniform(0.02, 0.2) * alone * speed / num_layers / num_ranks
    return {
        "num_ranks": num_ranks,
        "ranks_per_host": ranks_per_host,
        "memory_bytes": memory,
        "num_layers": num_layers,
        "num_heads": 2 ** draw.randint(1, 3) * draw.choice((1, 3)),
        "num_micro_batches": draw.choice((6, 10, 12, 20)),
        "state_bytes": state,
        "gradient_bytes": state // draw.choice((6, 8)),
        "activation_bytes": int(activations),
        "alone_s": round(alone, 2),
        "inside": [1e-5 * draw.randint(1, 9), int(speed)],
        "between": [1e-4 * draw.randint(1, 9), int(speed / draw.randint(4, 12))],
    }


def tempting_job(draw, rule):
    """
    Draw a job for which a mesh that breaks a rule would be the fastest.

    Args:
        draw: A random.Random.
        rule: "heads" or "layers".
    """
    while True:
        if rule == "heads":  # t is at most 2; t = 4 would need a shorter pipeline
            job = draw_job(draw, 32, 8, 8) | {"num_heads": draw.choice((2, 6))}
        else:  # p is at most 2; p = 4 would keep each cut layer in its host
            job = draw_job(draw, 32, 2, 8) | {"num_layers": draw.choice((6, 10, 14))}
            job |= {"num_heads": draw.choice((4, 12))}
        if _tempts(job_of(job), rule):
            return job


def full_job(draw):
    """
    Draw a job whose fastest mesh has a state that fills the memory to the last byte.
    """
    while True:
        job = draw_job(draw, 16, 8, 4)
        job |= {"state_bytes": 4 * job["memory_bytes"]}
        best = best_of(job_of(job))
        if best is not None and best[0][1] * best[0][2] == 4:
            return job


def spare_job(draw):
    """
    Draw a job that fewer ranks than there are would finish sooner.
    """
    while True:
        job = draw_job(draw, 32, 8, 3) | {"num_heads": draw.choice((3, 6, 12))}
        best = best_of(job_of(job))
        if best is not None and _is_sooner_by_fewer(job_of(job), best[1]):
            return job


def _is_sooner_by_fewer(job, best_s):
    sizes = range(1, job.num_ranks + 1)
    for tensor in (size for size in sizes if job.num_heads % size == 0):
        for pipeline in (size for size in sizes if job.num_layers % size == 0):
            mesh = job.num_ranks // (tensor * pipeline), tensor, pipeline
            fits = job.state_bytes <= job.memory_bytes * tensor * pipeline
            if mesh[0] and fits and seconds(job, mesh) < 0.99 * best_s:
                return True
    return False


def wide_job(draw):
    """
    Draw a job in which a layer must be cut over more ranks than a host has.
    """
    odd = {"num_layers": draw.choice((7, 11, 13)), "num_heads": draw.choice((8, 24))}
    return draw_job(draw, 16, 2, 4) | odd


def is_full(job, mesh):
    """
    Tell whether a mesh fills the memory of its ranks to the last byte.
    """
    return held_bytes(job, *mesh) == job.memory_bytes


def _tempts(job, rule):
    best = best_of(job)
    if best is None:
        return False
    broken = [mesh for mesh in meshes(job.num_ranks) if (fault_of(job, *mesh) or ("",))[0] == rule]
    fitting = [mesh for mesh in broken if held_bytes(job, *mesh) <= job.memory_bytes]
    return any(seconds(job, mesh) < 0.99 * best[1] for mesh in fitting)


def possible_meshes(job):
    """
    Return the meshes on which a job can be trained.
    """
    return [mesh for mesh in meshes(job.num_ranks) if fault_of(job, *mesh) is None]


def fault_of(job, data, tensor, pipeline):
    """
    Return (mistake, sentence) for a mesh on which a job cannot be trained; None if it can.
    """
    if data * tensor * pipeline != job.num_ranks:
        return "product", f"{data} x {tensor} x {pipeline} are not {job.num_ranks} ranks."
    if job.num_heads % tensor:
        return "heads", f"{job.num_heads} heads do not divide by {tensor}."
    if job.num_layers % pipeline:
        return "layers", f"{job.num_layers} layers do not divide by {pipeline}."
    held = held_bytes(job, data, tensor, pipeline)
    if held > job.memory_bytes:
        room = f"{job.memory_bytes / 1e9:.1f} GB"
        return "memory", f"A rank would hold {held / 1e9:.1f} GB, and there is room for {room}."
    return None


def is_close(one, other):
    """
    Tell whether two numbers of seconds are equal up to rounding.
    """
    return abs(one - other) <= CLOSE * abs(other)


def best_of(job, forgets=None):
    """
    Return the fastest possible mesh and its seconds, as found by an answer that forgets something.

    Args:
        job: The Job.
        forgets: One of MISTAKES; None: nothing is forgotten.

    Returns:
        tuple: ((d, t, p), seconds); None if no mesh is possible.
    """
    reckoned = [(mesh, seconds(job, mesh, forgets)) for mesh in possible_meshes(job)]
    return min(reckoned, key=lambda pair: pair[1], default=None)


def seconds(job, mesh, forgets=None):
    """
    Return the seconds of a step, without what is forgotten.

    Args:
        job: The Job.
        mesh: (d, t, p).
        forgets: One of MISTAKES; None: nothing is forgotten.
    """
    data, tensor, pipeline = mesh
    if forgets is None:
        return step_s(job, data, tensor, pipeline)
    num_micro = job.num_micro_batches
    ends = {"tensor": tensor, "pipeline": tensor * pipeline, "data": job.num_ranks}
    if forgets == "links-by-size":
        ends = {"tensor": tensor, "pipeline": pipeline, "data": data}
    if forgets in ("pipe-by-size", "data-by-size"):
        ends |= {"pipeline": pipeline} if forgets == "pipe-by-size" else {"data": data}
    links = {
        axis: job.between if end > job.ranks_per_host else job.inside for axis, end in ends.items()
    }
    if forgets in ("all-inside", "all-between"):
        links = dict.fromkeys(ends, job.inside if forgets == "all-inside" else job.between)
    shared = (data if forgets != "activations-of-all" else 1) * (
        num_micro if forgets != "micro-batches" else 1
    )
    activations = job.activation_bytes / shared
    layers = job.num_layers / (pipeline if forgets != "calls-of-all-layers" else 1)
    calls = (2 if forgets == "half-the-calls" else 4) * layers
    calls *= 1 if forgets == "calls-once" else num_micro
    gradients = job.gradient_bytes / (tensor * pipeline if forgets != "gradients-whole" else 1)
    messages = (1 if forgets == "one-message" else 2) * num_micro
    parts = [
        _compute(job, data * tensor * pipeline, pipeline, forgets),
        calls * _ring(tensor, activations, links["tensor"], forgets),
        messages
        * (pipeline > 1 or forgets == "pipe-of-one")
        * _message(activations, links["pipeline"], forgets),
        _ring(data, gradients, links["data"], forgets),
    ]
    return max(parts) if forgets == "slowest-only" else sum(parts)


def _compute(job, num_ranks, pipeline, forgets):
    share = 1 if forgets == "compute-whole" else num_ranks
    num_micro = job.num_micro_batches
    bubble = 1 if forgets == "bubble" else (num_micro + pipeline - 1) / num_micro
    return job.alone_s / share * bubble


def _message(num_bytes, link, forgets):
    latency = 0 if forgets == "no-latency" else link.latency_s
    return latency + num_bytes / link.bandwidth_bytes_per_s


def _ring(num_ranks, num_bytes, link, forgets):
    if num_ranks == 1:
        return 0.0
    rounds = 1 if forgets == "bytes-once" else 2 * (num_ranks - 1)
    chunk = num_bytes if forgets == "bytes-once" else num_bytes / num_ranks
    spared = (rounds - 1) * link.latency_s if forgets == "latency-once" else 0.0
    return rounds * _message(chunk, link, forgets) - spared
