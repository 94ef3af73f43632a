"""
Answers to task 06.3.
"""

from bank import Answer, changed

from wrong_answers.ddp.sources import IMPORTS


def _pool(body):
    return IMPORTS + "@torch.no_grad()\ndef pool_statistics(layer, num_samples):\n" + body


_OWN = """\
    n, m, v = num_samples, layer.running_mean.double(), layer.running_var.double()
    sums = torch.stack([torch.full_like(m, n), n * m])
    dist.all_reduce(sums)
    total, mean = sums[0], sums[1] / sums[0]
"""

_SPREAD = """\
    spread = (n - 1) * v + n * (m - mean) ** 2
    dist.all_reduce(spread)
    variance = spread / (total - 1)
"""

_WRITE = """\
    layer.running_mean.copy_(mean)
    layer.running_var.copy_(variance)
"""

_ONE_CALL = """\
    n, m, v = num_samples, layer.running_mean, layer.running_var
    sums = torch.stack([torch.full_like(m, n), n * m, (n - 1) * v + n * m * m])
    dist.all_reduce(sums)
    total, mean = sums[0], sums[1] / sums[0]
    variance = (sums[2] - total * mean * mean) / (total - 1)
"""

_POOLS = _OWN + _SPREAD + _WRITE

_COUNTS_ON = """\
    global num_all
    num_all = num_all + sums[0]
    total, mean = num_all, sums[1] / num_all"""

_KEEP = "    layer.running_mean, layer.running_var = "


def _norm(name, mistake, old, new):
    return Answer("06.3", name, mistake, _pool(changed(_POOLS, (old, new))))


ANSWERS = [
    Answer(
        "06.3",
        "broadcasts rank 0's, as DDP does",
        "rank-0",
        _pool(
            "    dist.broadcast(layer.running_mean, 0)\n    dist.broadcast(layer.running_var, 0)\n"
        ),
    ),
    Answer(
        "06.3",
        "averages means of unequal batches",
        "unweighted",
        _pool(
            """\
    for statistic in (layer.running_mean, layer.running_var):
        dist.all_reduce(statistic)
        statistic /= dist.get_world_size()
"""
        ),
    ),
    Answer(
        "06.3",
        "averages variances, and forgets that means are apart",
        "within-only",
        _pool(
            _OWN
            + "    variance = n * v\n    dist.all_reduce(variance)\n    variance /= total\n"
            + _WRITE
        ),
    ),
    Answer(
        "06.3",
        "takes running_var for a mean of squares",
        "biased",
        _pool(_OWN + _SPREAD.replace("(n - 1)", "n").replace("(total - 1)", "total") + _WRITE),
    ),
    Answer(
        "06.3",
        "takes the mean of squares less the square of the mean, in float32",
        "cancels",
        _pool(_ONE_CALL + _WRITE),
    ),
    Answer(
        "06.3",
        "gives other tensors the names",
        "unchanged",
        _pool(
            _OWN
            + _SPREAD
            + "    running_mean, running_var = layer.running_mean, layer.running_var\n"
            + "    running_mean, running_var = mean.float(), variance.float()\n"
        ),
    ),
    Answer(
        "06.3",
        "pools on rank 0",
        "not-everywhere",
        _pool(
            _OWN + _SPREAD + "    if dist.get_rank() == 0:\n" + _WRITE.replace("    ", "        ")
        ),
    ),
    Answer(
        "06.3",
        "makes a call for each sum",
        "cost",
        _pool(
            """\
    n = torch.tensor(float(num_samples), dtype=torch.float64)
    m, v = layer.running_mean.double(), layer.running_var.double()
    total, mean = n.clone(), n * m
    dist.all_reduce(total)
    dist.all_reduce(mean)
    mean /= total
"""
            + _SPREAD
            + _WRITE
        ),
    ),
    Answer(
        "06.3",
        "sends a plain number",
        "raised",
        _pool("    dist.all_reduce(num_samples)\n"),
    ),
    Answer(
        "06.3",
        "leaves out ranks with few samples",
        "deadlock",
        _pool("    if num_samples < 3:\n        return\n" + _OWN + _SPREAD + _WRITE),
    ),
    Answer(
        "06.3",
        "adds up once, in float64",
        None,
        _pool(
            _ONE_CALL.replace(
                "layer.running_mean, layer.running_var",
                "layer.running_mean.double(), layer.running_var.double()",
            )
            + _WRITE
        ),
    ),
    Answer(
        "06.3",
        "gathers all statistics, and puts new tensors into the layer",
        None,
        _pool(
            """\
    n = torch.full_like(layer.running_mean, num_samples)
    own = torch.stack([n, layer.running_mean, layer.running_var])
    everyone = [torch.empty_like(own) for _ in range(dist.get_world_size())]
    dist.all_gather(everyone, own)
    n, m, v = torch.stack(everyone, dim=1)
    mean = (n * m).sum(0) / n.sum(0)
    layer.running_var = ((n - 1) * v + n * (m - mean) ** 2).sum(0) / (n.sum(0) - 1)
    layer.running_mean = mean
"""
        ),
    ),
    _norm(
        "takes other ranks to have as many samples",
        "own-count",
        "total, mean = sums[0], sums[1] / sums[0]",
        "total = n * dist.get_world_size()\n    mean = sums[1] / total",
    ),
    _norm("counts a distance once", "distance-once", "n * (m - mean)", "(m - mean)"),
    _norm("gives deviations", "root", "copy_(variance)", "copy_(variance.sqrt())"),
    _norm(
        "adds up in bfloat16",
        "digits",
        "torch.stack([torch.full_like(m, n), n * m])",
        "torch.stack([torch.full_like(m, n), n * m]).bfloat16()",
    ),
    _norm(
        "goes a part of the way",
        "part-way",
        "running_mean.copy_(mean)",
        "running_mean.lerp_(mean.float(), 0.1)",
    ),
    _norm(
        "makes the variance no number", "values", "copy_(variance)", "copy_(variance * torch.nan)"
    ),
    _norm("puts float64 into the layer", "dtype", _WRITE, f"{_KEEP}mean, variance\n"),
    _norm("puts no variance into the layer", "shape", _WRITE, f"{_KEEP}mean.float(), None\n"),
    _norm(
        "changes the weight, too",
        "left-changed",
        _WRITE,
        f"{_WRITE}    layer.weight.copy_(variance)\n",
    ),
    Answer(
        "06.3",
        "adds up samples from call to call",
        "kept",
        "num_all = 0\n\n\n"
        + _pool(
            changed(
                _POOLS,
                ("    total, mean = sums[0], sums[1] / sums[0]", _COUNTS_ON),
            )
        ),
    ),
    _norm(
        "loads a state",
        None,
        _WRITE,
        "    state = layer.state_dict()\n"
        "    layer.load_state_dict(state | {'running_mean': mean, 'running_var': variance})\n",
    ),
    Answer(
        "06.3",
        "merges from rank to rank in float32",
        None,
        _pool(
            """\
    n = torch.full_like(layer.running_mean, num_samples)
    own = torch.stack([n, layer.running_mean, (n - 1) * layer.running_var])
    everyone = [torch.empty_like(own) for _ in range(dist.get_world_size())]
    dist.all_gather(everyone, own)
    n, mean, spread = everyone[0]
    for its_n, its_mean, its_spread in everyone[1:]:
        apart, total = its_mean - mean, n + its_n
        mean = mean + apart * its_n / total
        spread = spread + its_spread + apart**2 * n * its_n / total
        n = total
    layer.register_buffer("running_mean", mean)
    layer.running_var.data = spread / (n - 1)
"""
        ),
    ),
    Answer(
        "06.3",
        "waits for functional collectives by wait_tensor",
        None,
        "from torch.distributed import _functional_collectives as fun\n"
        + _pool(
            _POOLS.replace(
                "    dist.all_reduce(sums)",
                "    sums = fun.wait_tensor(fun.all_reduce(sums, 'sum', dist.group.WORLD))",
            ).replace(
                "    dist.all_reduce(spread)",
                "    spread = fun.wait_tensor(fun.all_reduce(spread, 'sum', dist.group.WORLD))",
            )
        ),
    ),
]
