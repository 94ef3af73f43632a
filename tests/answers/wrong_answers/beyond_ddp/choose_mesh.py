"""
Answers to task 15.4.
"""

from bank import Answer, changing

MESH = """\
def choose_mesh(job):
    n = job["num_ranks"]
    M = job["num_micro_batches"]
    L = job["num_layers"]

    def link(span):
        if span > job["ranks_per_host"]:
            return job["between"]
        return job["inside"]

    def message(size, link):
        return link[0] + size / link[1]

    def ring(k, size, link):
        rounds = 2 * (k - 1)
        return rounds * message(size / k, link)

    best = None
    t = 1
    while t <= n:
        p = 1
        while t * p <= n:
            d = n // (t * p)
            heads_ok = job["num_heads"] % t == 0
            layers_ok = L % p == 0
            memory_ok = job["state_bytes"] / (t * p) <= job["memory_bytes"]
            if heads_ok and layers_ok and memory_ok:
                compute = job["alone_s"] / n * (M + p - 1) / M
                act = job["activation_bytes"] / d / M
                tensor = 4 * L / p * M * ring(t, act, link(t))
                pipe = 2 * M * message(act, link(t * p)) if p > 1 else 0
                data = ring(d, job["gradient_bytes"] / (t * p), link(d * t * p))
                total = compute + tensor + pipe + data
                if best is None or total < best[3]:
                    best = (d, t, p, total)
            p *= 2
        t *= 2
    return best
"""

altered = changing({"15.4": MESH})

ANSWERS = [
    altered("15.4", "forgets the bubble", "bubble", (" * (M + p - 1) / M", "")),
    altered(
        "15.4",
        "computes all on each rank",
        "compute-whole",
        ('job["alone_s"] / n', 'job["alone_s"]'),
    ),
    altered(
        "15.4",
        "sends the activations of all samples",
        "activations-of-all",
        ('"] / d / M', '"] / M'),
    ),
    altered("15.4", "sends whole batches", "micro-batches", ('"] / d / M', '"] / d')),
    altered(
        "15.4", "has all layers on each rank", "calls-of-all-layers", ("4 * L / p * M", "4 * L * M")
    ),
    altered("15.4", "sums once a step", "calls-once", ("4 * L / p * M", "4 * L / p")),
    altered("15.4", "forgets the backward of layers", "half-the-calls", ("4 * L / p", "2 * L / p")),
    altered(
        "15.4",
        "averages all gradients",
        "gradients-whole",
        ('["gradient_bytes"] / (t * p)', '["gradient_bytes"]'),
    ),
    altered(
        "15.4",
        "shares gradients by layers only",
        "values",
        ('["gradient_bytes"] / (t * p)', '["gradient_bytes"] / t'),
    ),
    altered("15.4", "sends forward only", "one-message", ("2 * M * message", "M * message")),
    altered("15.4", "sends from one stage, too", "pipe-of-one", (" if p > 1 else 0", "")),
    altered(
        "15.4",
        "knows one link, the fast one",
        "all-inside",
        ('return job["between"]', 'return job["inside"]'),
    ),
    altered(
        "15.4",
        "knows one link, the slow one",
        "all-between",
        ('return job["inside"]', 'return job["between"]'),
    ),
    altered("15.4", "forgets latencies", "no-latency", ("link[0] + size", "size")),
    altered(
        "15.4",
        "sends a ring's bytes once",
        "bytes-once",
        ("rounds = 2 * (k - 1)", "rounds = 1 if k > 1 else 0"),
        ("size / k, link", "size, link"),
    ),
    altered(
        "15.4",
        "hides all behind the longest",
        "slowest-only",
        ("compute + tensor + pipe + data", "max(compute, tensor, pipe, data)"),
    ),
    altered("15.4", "cuts heads", "heads", ("if heads_ok and layers_ok", "if layers_ok")),
    altered(
        "15.4", "cuts layers into stages", "layers", ("if heads_ok and layers_ok", "if heads_ok")
    ),
    altered(
        "15.4",
        "shares the state out over the data axis, too",
        "memory",
        ('job["state_bytes"] / (t * p)', 'job["state_bytes"] / n'),
    ),
    altered(
        "15.4",
        "gives up where one rank cannot hold it",
        "none",
        (
            "    best = None\n",
            '    if job["state_bytes"] > job["memory_bytes"]:\n        return\n    best = None\n',
        ),
    ),
    altered(
        "15.4",
        "takes the first that fits",
        "slower",
        ("if best is None or total < best[3]", "if best is None"),
    ),
    altered(
        "15.4",
        "counts all ranks as copies",
        "product",
        ("best = (d, t, p, total)", "best = (n, t, p, total)"),
    ),
    altered(
        "15.4",
        "returns the sizes only",
        "no-mesh",
        ("    return best\n", "    return best and best[:3]\n"),
    ),
    altered(
        "15.4",
        "expects that something fits",
        "raised",
        ("    return best\n", "    return tuple(best)\n"),
    ),
    altered(
        "15.4",
        "asks the others",
        "forbidden",
        (
            "    best = None\n",
            "    import torch, torch.distributed as dist\n"
            "    dist.all_reduce(torch.ones(1))\n    best = None\n",
        ),
    ),
    Answer(
        "15.4",
        "reckons by the lesson's costs",
        None,
        """\
import itertools

from ddp_lessons.costs import Link, collective_s


def choose_mesh(job):
    inside, between = Link(*job["inside"]), Link(*job["between"])
    n, M = job["num_ranks"], job["num_micro_batches"]
    powers = [2**i for i in range(n.bit_length())]

    def near(span):
        return inside if span <= job["ranks_per_host"] else between

    def seconds(d, t, p):
        act = job["activation_bytes"] / (d * M)
        s = [job["alone_s"] / n, job["alone_s"] / n * (p - 1) / M]
        one = collective_s("all_reduce", "ring", t, act, near(t))
        s += [one] * (4 * M * job["num_layers"] // p)
        if p > 1:
            s += [near(t * p).message_s(act)] * 2 * M
        gradients = job["gradient_bytes"] / t / p
        return sum(s) + collective_s("all_reduce", "ring", d, gradients, near(n))

    fits = {
        (d, t, p): seconds(d, t, p)
        for d, t, p in itertools.product(powers, repeat=3)
        if d * t * p == n
        and not job["num_heads"] % t
        and not job["num_layers"] % p
        and t * p * job["memory_bytes"] >= job["state_bytes"]
    }
    if not fits:
        return None
    best = sorted(fits, key=fits.get)[0]
    return [*best, fits[best]]
""",
    ),
    altered(
        "15.4",
        "leaves a byte of room",
        "full",
        ('<= job["memory_bytes"]', '< job["memory_bytes"]'),
    ),
    Answer(
        "15.4",
        "takes the lesson's",
        None,
        """\
from ddp_lessons.beyond_ddp.mesh import Job, best_mesh, step_s
from ddp_lessons.costs import Link


def choose_mesh(job):
    links = {name: Link(*job[name]) for name in ("inside", "between")}
    job = Job(**job | links)
    best = best_mesh(job)
    return best and (*best, step_s(job, *best))
""",
    ),
]
