"""
Answers to task 14.1.
"""

from bank import Answer

from wrong_answers.asynchronous.sources import IMPORTS, altered

ANSWERS = [
    altered(
        "14.1",
        "waits for its sends in the end",
        "early",
        (
            "            dist.send(weights, one)\n",
            "            sends.append(dist.isend(weights, one))\n",
        ),
        ("    waiting, log = set(), []\n", "    waiting, log, sends = set(), [], []\n"),
        ("    return log\n", "    for send in sends:\n        send.wait()\n    return log\n"),
    ),
    Answer(
        "14.1",
        "polls the handles of irecv",
        "late",
        IMPORTS
        + """\
def serve(weights, num_steps, bound, rate):
    workers = range(1, dist.get_world_size())
    rows = {worker: torch.empty_like(weights) for worker in workers}
    coming = {worker: dist.irecv(rows[worker], worker) for worker in workers}
    log = []
    while len(log) < len(workers) * num_steps:
        for worker in workers:
            if coming[worker].is_completed():
                weights -= rate * rows[worker]
                log.append((worker, 0))
                dist.send(weights, worker)
                coming[worker] = dist.irecv(rows[worker], worker)
    return log
""",
    ),
    altered(
        "14.1",
        "receives by irecv, and waits at once",
        None,
        (
            "        worker = dist.recv(gradient)\n",
            "        coming = dist.irecv(gradient)\n        coming.wait()\n"
            "        worker = coming._source_rank()\n",
        ),
    ),
    altered(
        "14.1",
        "sends copies, and waits for them in the end",
        None,
        (
            "            dist.send(weights, one)\n",
            "            sends.append(dist.isend(weights.clone(), one))\n",
        ),
        ("    waiting, log = set(), []\n", "    waiting, log, sends = set(), [], []\n"),
        ("    return log\n", "    for send in sends:\n        send.wait()\n    return log\n"),
    ),
    Answer(
        "14.1",
        "serves the workers in turns",
        "deadlock",
        IMPORTS
        + """\
def serve(weights, num_steps, bound, rate):
    log, gradient = [], torch.empty_like(weights)
    workers = range(1, dist.get_world_size())
    for step in range(num_steps):
        for worker in workers:
            dist.recv(gradient, worker)
            weights -= rate * gradient
            log.append((worker, 0))
        for worker in workers:
            dist.send(weights, worker)
    return log
""",
    ),
    altered("14.1", "has no bound", "too-early", ("if made[one] - slowest <= bound", "")),
    altered(
        "14.1",
        "answers before it applies",
        "own-missing",
        ("        weights.sub_(gradient, alpha=rate)\n", ""),
        (
            "            waiting.remove(one)\n",
            "            waiting.remove(one)\n        weights.sub_(gradient, alpha=rate)\n",
        ),
    ),
    altered("14.1", "forgets the rate", "weights", (", alpha=rate", "")),
    altered(
        "14.1",
        "makes new weights",
        "not-in-place",
        ("weights.sub_(gradient, alpha=rate)", "weights = weights - rate * gradient"),
    ),
    altered(
        "14.1",
        "forgets what came last",
        "log",
        ("return log", "return log[:-1]"),
    ),
    altered("14.1", "sorts the log by worker", "log-order", ("return log", "return sorted(log)")),
    altered(
        "14.1",
        "takes the age from the start",
        "ages",
        ("version - given[worker]", "version"),
    ),
    altered(
        "14.1",
        "counts the gradient itself",
        "own-counted",
        ("version - given[worker]", "version + 1 - given[worker]"),
    ),
    altered(
        "14.1",
        "looks who is slowest before it counts",
        "too-late",
        (
            "        made[worker] += 1\n",
            "        least = min(made.values())\n        made[worker] += 1\n",
        ),
        ("        slowest = min(made.values())\n", "        slowest = least\n"),
        (
            "    return log",
            "    for one in waiting:\n        dist.send(weights, one)\n    return log",
        ),
    ),
    altered(
        "14.1",
        "receives by a handle",
        None,
        (
            "        worker = dist.recv(gradient)\n",
            "        handle = dist.irecv(gradient)\n"
            "        handle.wait()\n"
            "        worker = handle._source_rank()\n",
        ),
        ("for one in ready:", "for one in sorted(ready, reverse=True):"),
    ),
    altered(
        "14.1",
        "sends in the background",
        None,
        (
            "            dist.send(weights, one)\n",
            "            dist.isend(weights.clone(), one).wait()\n",
        ),
        ("log.append((worker,", "log.append([worker,"),
        ("given[worker]))", "given[worker]])"),
    ),
]
