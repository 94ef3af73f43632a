"""
Answers to task 17.2.
"""

from bank import Answer, changed

CHOOSE = """\
def choose_remedy(figures, allowed):
    h, g, B = figures["num_hosts"], figures["ranks_per_host"], figures["num_bytes"]
    L, b = figures["latency_s"], figures["bytes_per_s"]
    l, m = figures["local_latency_s"], figures["local_bytes_per_s"]
    c, p, w = figures["compute_s"], figures["pack_s"], h * g
    flat = 2 * (w - 1) * (L + B / w / b)
    within = 2 * (g - 1) * (l + B / g / m)
    across = 2 * (h - 1) * (L + B / h / b)
    half = 2 * (w - 1) * (L + B / 2 / w / b)
    top = (w - 1) * (L + B / 50 / b)
    times = {
        "flat": flat, "hierarchical": within + across, "half": p + half, "top-k": p + top,
        "accumulate": flat / 4, "local SGD": flat / 8,
    }
    return min(allowed, key=lambda name: c + times[name])
"""


def altered(name, mistake, *pairs):
    """
    Return an answer to task 17.2: the right one with the pairs (old, new) replaced.
    """
    return Answer("17.2", name, mistake, changed(CHOOSE, *pairs))


ANSWERS = [
    altered(
        "sends nothing but bytes",
        "no-latency",
        ('figures["latency_s"]', "0"),
        ('figures["local_latency_s"]', "0"),
    ),
    altered("counts messages only", "no-bytes", ('figures["num_bytes"]', "0")),
    altered("packs in no time", "no-packing", ('figures["pack_s"]', "0")),
    altered("talks after every batch", "window", ("flat / 4", "flat"), ("flat / 8", "flat")),
    altered("has hosts that are one rank inside", "no-local", ("within + across", "across")),
    altered(
        "gives each rank the whole link",
        "not-shared",
        ("(L + B / h / b)", "(L + B / h / g / b)"),
    ),
    altered(
        "adds up the largest on the way",
        "top-k",
        ("(w - 1) * (L + B / 50 / b)", "2 * (w - 1) * (L + B / 50 / w / b)"),
    ),
    altered(
        "goes round hosts, not ranks",
        "ring",
        ('figures["pack_s"], h * g', 'figures["pack_s"], h'),
        ("within + across", "across"),
    ),
    altered("takes the longest", "slowest", ("return min(", "return max(")),
    altered("takes any way", "not-allowed", ("min(allowed", "min(times")),
    altered(
        "compares figures of no sense",
        "raised",
        ("    return", "    times = {name: times[name] for name in sorted(times)[:4]}\n    return"),
    ),
    altered(
        "strikes ways from the list",
        "input-changed",
        ("    return min(allowed", "    allowed.sort()\n    return min(allowed"),
    ),
    altered(
        "asks the others",
        "forbidden",
        (
            "    return",
            "    import torch, torch.distributed as dist\n"
            "    dist.all_reduce(torch.ones(1))\n    return",
        ),
    ),
    Answer(
        "17.2",
        "walks through the messages one by one",
        None,
        """\
def choose_remedy(figures, allowed):
    def walk(n, size, link, rounds=2):
        seconds = 0.0
        for _ in range(rounds * (n - 1)):
            seconds += link[0] + size / n / link[1]
        return seconds

    link = figures["latency_s"], figures["bytes_per_s"]
    local = figures["local_latency_s"], figures["local_bytes_per_s"]
    h, g, size = (figures[name] for name in ("num_hosts", "ranks_per_host", "num_bytes"))
    best = None
    for name in allowed:
        if name == "hierarchical":
            seconds = walk(g, size, local) + walk(h, size, link)
        elif name == "half":
            seconds = walk(h * g, size // 2, link) + figures["pack_s"]
        elif name == "top-k":
            seconds = walk(h * g, h * g * size * 0.02, link, rounds=1) + figures["pack_s"]
        else:
            seconds = walk(h * g, size, link) / {"flat": 1, "accumulate": 4, "local SGD": 8}[name]
        if best is None or seconds < best[0]:
            best = seconds, name
    return best[1]
""",
    ),
    altered(
        "forgets that batches are computed, which all ways do alike",
        None,
        ("key=lambda name: c + times[name]", "key=times.get"),
    ),
]
