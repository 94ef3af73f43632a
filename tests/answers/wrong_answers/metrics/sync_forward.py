"""
Answers to task 12.2.
"""

from bank import Answer

from wrong_answers.metrics.sources import IMPORTS, altered

WIDE = "    wide = x.double()\n"
REDUCE = "    dist.all_reduce(own)\n"
VAR = "    var = squares - mean ** 2\n"
Y = "    y = (wide - mean) / torch.sqrt(var + layer.eps)\n"
NEW = "var * n / (n - 1)"

ANSWERS = [
    Answer(
        "12.2",
        "calls the layer",
        "own-statistics",
        IMPORTS + "def sync_forward(layer, x):\n    dist.all_reduce(torch.zeros(1))\n"
        "    return layer(x) if len(x) > 1 else x * layer.weight\n",
    ),
    altered(
        "12.2",
        "takes the mean of means",
        "mean-of-means",
        (
            "    own = torch.cat([count, wide.sum(0), wide.square().sum(0)])\n",
            "    k = max(len(x), 1)\n"
            "    own = torch.cat([count, wide.sum(0) / k, wide.square().sum(0) / k])\n",
        ),
        ("(own[1:] / n)", "(own[1:] / dist.get_world_size())"),
    ),
    altered("12.2", "divides by N - 1 for y", "unbiased", (Y, Y.replace("var +", NEW + " +"))),
    altered("12.2", "forgets eps", "scale", (" + layer.eps", "")),
    altered(
        "12.2",
        "sums in float32",
        "digits",
        (WIDE, "    wide = x\n"),
        ("dtype=torch.float64, ", "dtype=x.dtype, "),
    ),
    altered(
        "12.2",
        "counts the samples once",
        "values",
        (
            "    own = torch.cat",
            "    count = vars(layer).setdefault('num_samples', count)\n    own = torch.cat",
        ),
    ),
    altered(
        "12.2",
        "begins its sum with its own part",
        "not-alike",
        (
            REDUCE,
            "    parts = [torch.empty_like(own) for _ in range(dist.get_world_size())]\n"
            "    dist.all_gather(parts, own)\n"
            "    rest = [p for r, p in enumerate(parts) if r != dist.get_rank()]\n"
            "    own = sum(rest, own)\n",
        ),
    ),
    altered(
        "12.2",
        "divides by its own number of samples less one",
        "running-biased",
        (NEW, "(var * len(x) / (len(x) - 1) if len(x) > 1 else var)"),
    ),
    altered(
        "12.2",
        "leaves the layer in eval mode",
        "left-changed",
        ("    return y", "    layer.eval()\n    return y"),
    ),
    altered(
        "12.2",
        "centres x in place",
        "input-changed",
        ("    return y", "    x.sub_(mean)\n    return y"),
    ),
    altered("12.2", "returns nothing", "nothing", ("    return y.to(x.dtype)\n", "")),
    altered(
        "12.2",
        "takes the variance of its own",
        "raised",
        (WIDE, WIDE + "    if not len(x): raise ValueError('no samples')\n"),
    ),
    altered(
        "12.2",
        "leaves without samples",
        "deadlock",
        (WIDE, "    if len(x) == 0: return x.clone()\n" + WIDE),
    ),
    altered(
        "12.2",
        "makes three collectives",
        "cost",
        (REDUCE, "    for part in own.split([1, x.shape[1], x.shape[1]]): dist.all_reduce(part)\n"),
    ),
    altered(
        "12.2",
        "returns float64",
        "dtype",
        ("y.to(x.dtype)", "y.double().float().double() if x.dtype == torch.float32 else y"),
    ),
    Answer(
        "12.2",
        "gathers means and squares around them",
        None,
        IMPORTS
        + """\
def sync_forward(layer, x):
    wide, k = x.double(), max(len(x), 1)
    own_mean = wide.sum(0) / k
    own = torch.stack([own_mean, (wide - own_mean).square().sum(0)]).flatten()
    own = torch.cat([own, own.new_tensor([len(x)])])
    everyone = [torch.empty_like(own) for _ in range(dist.get_world_size())]
    dist.all_gather(everyone, own)
    n = mean = squares = 0
    for one in everyone:
        (m_r, s_r), n_r = one[:-1].chunk(2), one[-1]
        if n_r:
            apart = m_r - mean
            squares = squares + s_r + apart ** 2 * n * n_r / (n + n_r)
            mean = mean + apart * n_r / (n + n_r)
            n = n + n_r
    scale = layer.weight / (squares / n + layer.eps).sqrt()
    with torch.no_grad():
        layer.running_mean += layer.momentum * (mean - layer.running_mean)
        layer.running_var += layer.momentum * (squares / (n - 1) - layer.running_var)
        layer.num_batches_tracked.add_(1)
    return ((wide - mean) * scale + layer.bias).to(x.dtype)
""",
    ),
    Answer(
        "12.2",
        "uses batch_norm of torch with statistics of all",
        None,
        IMPORTS
        + """\
from ddp_lessons.metrics import all_rank_statistics

def sync_forward(layer, x):
    n, mean, var = all_rank_statistics(x)
    m = layer.momentum
    with torch.no_grad():
        layer.running_mean.lerp_(mean.to(x.dtype), m)
        layer.running_var.lerp_((var * n / (n - 1)).to(x.dtype), m)
        layer.num_batches_tracked.copy_(layer.num_batches_tracked + 1)
        return torch.nn.functional.batch_norm(
            x.double(), mean, var, layer.weight.double(), layer.bias.double(), False, 0.0, layer.eps
        ).to(x.dtype)
""",
    ),
    Answer(
        "12.2",
        "uses the lesson's layer",
        None,
        IMPORTS
        + """\
from ddp_lessons.metrics import with_sync_batch_norm

def sync_forward(layer, x):
    return with_sync_batch_norm(layer)(x).detach()
""",
    ),
    Answer(
        "12.2",
        "takes the mean of no samples",
        "nan",
        """\
import torch
import torch.distributed as dist


@torch.no_grad()
def sync_forward(layer, x):
    channels = x.shape[1]
    wide = x.double()
    n = len(x)
    packed = torch.cat((wide.mean(0) * n, wide.square().mean(0) * n, wide.new_tensor([n])))
    dist.all_reduce(packed)
    count = packed[-1]
    mean = packed[:channels] / count
    variance = (packed[channels:-1] / count - mean.square()).clamp(min=0)
    y = (wide - mean) / torch.sqrt(variance + layer.eps)
    y = y * layer.weight.double() + layer.bias.double()
    m = layer.momentum
    unbiased = variance * count / (count - 1)
    layer.running_mean.copy_((1 - m) * layer.running_mean.double() + m * mean)
    layer.running_var.copy_((1 - m) * layer.running_var.double() + m * unbiased)
    layer.num_batches_tracked += 1
    return y.to(x.dtype)
""",
    ),
]
