"""
Answers to exercise 06.
"""

from bank import Answer

_IMPORTS = """\
import torch
import torch.distributed as dist


"""


def _hook(
    *,
    share="bucket.buffer() / dist.get_world_size()",
    owed="residuals.get(parameter, 0)",
    message="target.bfloat16()",
    rest="target - message",
    keep="residuals.update(zip(parameters, rest.split(sizes)))",
    send="dist.all_reduce(message, async_op=True)",
    end="return work.get_future().then(lambda _: buffer.copy_(message))",
    before="",
):
    """
    Return the source of a hook that differs from a right one in what is given.
    """
    return (
        _IMPORTS
        + f"""\
{before}def half_hook(residuals, bucket):
    buffer, parameters = bucket.buffer(), bucket.parameters()
    sizes = [parameter.numel() for parameter in parameters]
    target = {share}
    for parameter, part in zip(parameters, target.split(sizes)):
        part += {owed}
    message = {message}
    rest = {rest}
    {keep}
    work = {send}
    {end}
"""
    )


_DONE = """\
future = torch.futures.Future()
    future.set_result(buffer.copy_(message))
    return future"""

_HOOKS = [
    Answer("06.1", "sends float32", "bytes", _hook(message="target.clone()")),
    Answer(
        "06.1",
        "rounds, and sends the rounded numbers as float32",
        "bytes",
        _hook(message="target.bfloat16().to(target.dtype)"),
    ),
    Answer("06.1", "forgets what rounding takes away", "no-feedback", _hook(keep="pass")),
    Answer(
        "06.1",
        "keeps what it owes by the bucket's number",
        "raised",
        _IMPORTS
        + """\
def half_hook(residuals, bucket):
    buffer = bucket.buffer()
    target = buffer / dist.get_world_size()
    if bucket.index() in residuals:
        target += residuals[bucket.index()]
    message = target.bfloat16()
    residuals[bucket.index()] = target - message
    work = dist.all_reduce(message, async_op=True)
    return work.get_future().then(lambda _: buffer.copy_(message))
""",
    ),
    Answer(
        "06.1",
        "drops what it owes when a bucket changes",
        "rebuild",
        _IMPORTS
        + """\
def half_hook(residuals, bucket):
    buffer = bucket.buffer()
    target = buffer / dist.get_world_size()
    key = bucket.index(), len(buffer)
    if key in residuals:
        target += residuals[key]
    message = target.bfloat16()
    residuals[key] = target - message
    work = dist.all_reduce(message, async_op=True)
    return work.get_future().then(lambda _: buffer.copy_(message))
""",
    ),
    Answer("06.1", "takes the debt away", "sign", _hook(rest="message - target")),
    Answer(
        "06.1",
        "adds new debts to old ones that were paid",
        "wrong-debt",
        _hook(
            keep="""\
for parameter, part in zip(parameters, rest.split(sizes)):
        residuals[parameter] = residuals.get(parameter, 0) + part"""
        ),
    ),
    Answer(
        "06.1",
        "takes the gradient for the target",
        "wrong-debt",
        _hook(rest="buffer / dist.get_world_size() - message"),
    ),
    Answer(
        "06.1",
        "keeps a part of the bucket itself",
        "view",
        _hook(
            share="buffer.div_(dist.get_world_size())",
            rest="target.sub_(message)",
        ),
    ),
    Answer(
        "06.1",
        "owes the message too",
        "wrong-debt",
        _hook(rest="target.clone()"),
    ),
    Answer("06.1", "does not divide", "summed", _hook(share="bucket.buffer().clone()")),
    Answer(
        "06.1",
        "divides before and after",
        "divided-twice",
        _hook(
            end="return work.get_future().then("
            "lambda _: buffer.copy_(message).div_(dist.get_world_size()))"
        ),
    ),
    Answer("06.1", "sends float16", "overflow", _hook(message="target.half()")),
    Answer(
        "06.1",
        "waits in the hook",
        "waits",
        _hook(end=f"work.wait()\n    {_DONE}"),
    ),
    Answer(
        "06.1",
        "waits for the future in the hook",
        "waits",
        _hook(
            end=f"work.get_future().wait()\n    {_DONE}",
        ),
    ),
    Answer(
        "06.1",
        "calls a blocking all-reduce",
        "waits",
        _hook(
            send="dist.all_reduce(message)",
            end=_DONE,
        ),
    ),
    Answer(
        "06.1",
        "makes the future's result before the message is through",
        "too-early",
        _hook(end=_DONE),
    ),
    Answer(
        "06.1",
        "returns a tensor",
        "no-future",
        _hook(end="work.wait()\n    return buffer.copy_(message)"),
    ),
    Answer(
        "06.1", "returns nothing", "no-future", _hook(end="work.wait()\n    buffer.copy_(message)")
    ),
    Answer(
        "06.1",
        "keeps debts in a global",
        "elsewhere",
        _hook(
            before="debts = {}\n\n\n",
            owed="debts.get(parameter, 0)",
            keep="debts.update(zip(parameters, rest.split(sizes)))",
        ),
    ),
    Answer(
        "06.1",
        "sends each parameter by itself",
        "cost",
        _hook(
            send="[dist.all_reduce(one, async_op=True) for one in message.split(sizes)]",
            end="futures = torch.futures.collect_all([one.get_future() for one in work])\n"
            "    return futures.then(lambda _: buffer.copy_(message))",
        ),
    ),
    Answer(
        "06.1",
        "divides after the sum, and owes in that unit",
        None,
        _hook(
            share="bucket.buffer().clone()",
            end="return work.get_future().then("
            "lambda _: buffer.copy_(message).div_(dist.get_world_size()))",
        ),
    ),
    Answer(
        "06.1",
        "gathers the messages, adds up in full precision, and owes in half precision",
        None,
        _hook(
            rest="(target - message).bfloat16()",
            send="[torch.empty_like(message) for _ in range(dist.get_world_size())]",
            end="future = dist.all_gather(work, message, async_op=True).get_future()\n"
            "    total = lambda _: buffer.copy_(sum(one.to(buffer.dtype) for one in work))\n"
            "    return future.then(total)",
        ),
    ),
]


def _unused(body):
    return _IMPORTS + "def find_unused(model, loss):\n" + body


_REACHED = """\
    trained = {n: p for n, p in model.named_parameters() if p.requires_grad}
    gradients = torch.autograd.grad(loss, list(trained.values()), allow_unused=True)
"""
_FLAGS = "    counts = torch.tensor([g is not None for g in gradients], dtype=torch.int64)\n"
_LISTS = """\
    world_size, counts = dist.get_world_size(), counts.tolist()
    freeze = [n for n, count in zip(trained, counts) if count == 0]
    find = [n for n, count in zip(trained, counts) if 0 < count < world_size]
    return freeze, find
"""
_ADD = "    dist.all_reduce(counts)\n"
_BACKWARD = """\
    trained = {n: p for n, p in model.named_parameters() if p.requires_grad}
"""

_BRANCHES = [
    Answer("06.2", "asks its own rank only", "one-rank", _unused(_REACHED + _FLAGS + _LISTS)),
    Answer(
        "06.2",
        "looks into .grad, where an old gradient is",
        "stale",
        _unused(
            _BACKWARD
            + "    loss.backward()\n"
            + _FLAGS.replace("gradients", "[p.grad for p in trained.values()]")
            + _ADD
            + _LISTS
        ),
    ),
    Answer(
        "06.2",
        "empties .grad for its own backward",
        "gradients",
        _unused(
            _BACKWARD
            + "    model.zero_grad()\n    loss.backward()\n"
            + _FLAGS.replace("gradients", "[p.grad for p in trained.values()]")
            + _ADD
            + _LISTS
        ),
    ),
    Answer(
        "06.2",
        "takes a gradient of zeros for none",
        "zero",
        _unused(
            _REACHED
            + _FLAGS.replace("g is not None", "g is not None and g.any().item()")
            + _ADD
            + _LISTS
        ),
    ),
    Answer(
        "06.2",
        "lists frozen parameters too",
        "frozen",
        _unused(
            """\
    trained = dict(model.named_parameters())
    gradients = [
        torch.autograd.grad(loss, p, allow_unused=True, retain_graph=True)[0]
        if p.requires_grad else None
        for p in trained.values()
    ]
"""
            + _FLAGS
            + _ADD
            + _LISTS
        ),
    ),
    Answer(
        "06.2",
        "asks for gradients of frozen parameters",
        "raised",
        _unused((_REACHED + _FLAGS + _ADD + _LISTS).replace(" if p.requires_grad", "")),
    ),
    Answer(
        "06.2",
        "returns the lists the other way round",
        "swapped",
        _unused(_REACHED + _FLAGS + _ADD + _LISTS.replace("freeze, find\n", "find, freeze\n")),
    ),
    Answer(
        "06.2",
        "freezes what some rank does not reach",
        "too-much",
        _unused(
            _REACHED
            + _FLAGS
            + _ADD
            + """\
    freeze = [n for n, count in zip(trained, counts) if count < dist.get_world_size()]
    return freeze, []
"""
        ),
    ),
    Answer(
        "06.2",
        "sorts names",
        "order",
        _unused(
            _REACHED
            + _FLAGS
            + _ADD
            + _LISTS.replace("freeze, find\n", "sorted(freeze), sorted(find)\n")
        ),
    ),
    Answer(
        "06.2",
        "returns names of modules",
        "other-names",
        _unused(_REACHED + _FLAGS + _ADD + _LISTS.replace("[n for", "[n.partition('.')[0] for")),
    ),
    Answer(
        "06.2",
        "returns one list",
        "no-lists",
        _unused(_REACHED + _FLAGS + _ADD + _LISTS.replace("freeze, find\n", "freeze + find\n")),
    ),
    Answer(
        "06.2",
        "sends lists of names",
        "objects",
        _unused(
            _REACHED
            + """\
    missing = [n for n, g in zip(trained, gradients) if g is None]
    everyone = [None] * dist.get_world_size()
    dist.all_gather_object(everyone, missing)
    counts = [sum(n in one for one in everyone) for n in trained]
    freeze = [n for n, count in zip(trained, counts) if count == len(everyone)]
    find = [n for n, count in zip(trained, counts) if 0 < count < len(everyone)]
    return freeze, find
"""
        ),
    ),
    Answer(
        "06.2",
        "sends a flag at a time",
        "cost",
        _unused(
            _REACHED + _FLAGS + "    for flag in counts:\n        dist.all_reduce(flag)\n" + _LISTS
        ),
    ),
    Answer(
        "06.2",
        "talks only where something is missing",
        "deadlock",
        _unused(
            _REACHED
            + _FLAGS
            + """\
    if "right.weight" in trained and not counts[list(trained).index("right.weight")]:
        dist.all_reduce(counts)
"""
            + _LISTS
        ),
    ),
    Answer(
        "06.2",
        "walks the graph and gathers flags of a byte",
        None,
        _unused(
            """\
    waiting, seen, reached = [loss.grad_fn], set(), set()
    while waiting:
        node = waiting.pop()
        if node is not None and node not in seen:
            seen.add(node)
            if hasattr(node, "variable"):
                reached.add(id(node.variable))
            waiting += [following for following, _ in node.next_functions]
    trained = {n: p for n, p in model.named_parameters() if p.requires_grad}
    flags = torch.tensor([id(p) in reached for p in trained.values()], dtype=torch.int8)
    everyone = [torch.empty_like(flags) for _ in range(dist.get_world_size())]
    dist.all_gather(everyone, flags)
    counts = torch.stack(everyone).sum(0)
"""
            + _LISTS
        ),
    ),
    Answer(
        "06.2",
        "puts .grad aside, and back",
        None,
        _unused(
            _BACKWARD
            + """\
    kept = [p.grad for p in model.parameters()]
    model.zero_grad()
    loss.backward()
    counts = torch.tensor([float(p.grad is not None) for p in trained.values()])
    for p, old in zip(model.parameters(), kept):
        p.grad = old
"""
            + _ADD
            + _LISTS
        ),
    ),
]


def _pool(body):
    return _IMPORTS + "@torch.no_grad()\ndef pool_statistics(layer, num_samples):\n" + body


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

_NORMS = [
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
        "divides the whole by its number of samples",
        "biased",
        _pool(_OWN + _SPREAD.replace("(total - 1)", "total") + _WRITE),
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
]

_TRAIN = """\
import torch
import torch.distributed as dist
from torch.nn.functional import mse_loss
from torch.nn.parallel import DataParallel, DistributedDataParallel as DDP


def train(model, batches):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.125)
    for inputs, targets in batches:
        optimizer.zero_grad()
        mse_loss(model(inputs), targets).backward()
        optimizer.step()


"""
_RIGHT = {
    1: "train(DDP(net), batches)",
    2: """\
model = DDP(net)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.125)
    for inputs, targets in batches:
        optimizer.zero_grad()
        mse_loss(model(inputs), targets).backward()
        optimizer.step()""",
    3: """\
net.spare.requires_grad_(False)
    train(DDP(net), batches)""",
    4: """\
model = DDP(net)
    train(model, batches)
    if dist.get_rank() == 0:
        net.eval()
        with torch.no_grad():
            return mse_loss(net(test[0]), test[1]).item()""",
}


def _scripts(**changed):
    bodies = {**_RIGHT, **{int(name[-1]): body for name, body in changed.items()}}
    return (
        _TRAIN
        + "".join(
            f"def script_{n}(net, batches{', test' if n == 4 else ''}):\n    {body}\n\n\n"
            for n, body in bodies.items()
        )
        + "def scripts():\n    return script_1, script_2, script_3, script_4\n"
    )


_EVALUATE = """\
inputs, targets = test
    model.eval()
    with torch.no_grad():
        return mse_loss(model(inputs), targets).item()"""

_SCRIPTS = [
    Answer(
        "06.4",
        "leaves DataParallel in script 1",
        "alone",
        _scripts(script_1="train(DataParallel(net), batches)"),
    ),
    Answer(
        "06.4",
        "adds up losses in script 1",
        "passed-by",
        _scripts(
            script_1="""\
optimizer = torch.optim.SGD(net.parameters(), lr=0.125)
    for inputs, targets in batches:
        optimizer.zero_grad()
        loss = mse_loss(net(inputs), targets)
        loss.backward()
        dist.all_reduce(loss.detach())
        optimizer.step()"""
        ),
    ),
    Answer(
        "06.4",
        "calls the module past the wrapper in script 2",
        "passed-by",
        _scripts(script_2=_RIGHT[2].replace("model(inputs)", "model.module(inputs)")),
    ),
    Answer(
        "06.4",
        "wraps in every step of script 2",
        "wrapped-again",
        _scripts(
            script_2="""\
optimizer = torch.optim.SGD(net.parameters(), lr=0.125)
    for inputs, targets in batches:
        model = DDP(net)
        optimizer.zero_grad()
        mse_loss(model(inputs), targets).backward()
        optimizer.step()"""
        ),
    ),
    Answer(
        "06.4",
        "steps twice a batch in script 2",
        "too-far",
        _scripts(script_2=_RIGHT[2] + "\n        optimizer.step()"),
    ),
    Answer(
        "06.4",
        "freezes after wrapping in script 3",
        "waits-for-frozen",
        _scripts(
            script_3="""\
model = DDP(net)
    net.spare.requires_grad_(False)
    train(model, batches)"""
        ),
    ),
    Answer(
        "06.4",
        "lets rank 0 alone call the wrapper in script 4",
        "deadlock",
        _scripts(
            script_4="""\
model = DDP(net)
    train(model, batches)
    if dist.get_rank() == 0:
        model.eval()
        with torch.no_grad():
            return mse_loss(model(test[0]), test[1]).item()"""
        ),
    ),
    Answer(
        "06.4",
        "takes the evaluation out of script 4",
        "no-evaluation",
        _scripts(script_4="train(DDP(net), batches)"),
    ),
    Answer(
        "06.4",
        "evaluates script 4 in train mode",
        "evaluation",
        _scripts(script_4=_RIGHT[4].replace("        net.eval()\n", "")),
    ),
    Answer(
        "06.4",
        "meets the lonely broadcast of script 4 with a barrier",
        "deadlock",
        _scripts(
            script_4="""\
model = DDP(net)
    train(model, batches)
    if dist.get_rank() == 0:
        model.eval()
        with torch.no_grad():
            return mse_loss(model(test[0]), test[1]).item()
    dist.barrier()"""
        ),
    ),
    Answer(
        "06.4",
        "mends script 1 only",
        "unfinished",
        _scripts(
            **{
                f"script_{n}": 'raise NotImplementedError("Task 06.4 is still blank")'
                for n in (2, 3, 4)
            }
        ),
    ),
    Answer(
        "06.4",
        "lets DDP find the spare head, and all ranks evaluate",
        None,
        _scripts(
            script_3="train(DDP(net, find_unused_parameters=True), batches)",
            script_4="model = DDP(net)\n    train(model, batches)\n    " + _EVALUATE,
        ),
    ),
    Answer(
        "06.4",
        "averages gradients by hand, and switches the copying of buffers off",
        None,
        _scripts(
            script_1="""\
optimizer = torch.optim.SGD(net.parameters(), lr=0.125)
    for inputs, targets in batches:
        optimizer.zero_grad()
        mse_loss(net(inputs), targets).backward()
        for parameter in net.parameters():
            dist.all_reduce(parameter.grad)
            parameter.grad /= dist.get_world_size()
        optimizer.step()""",
            script_4="""\
model = DDP(net, broadcast_buffers=False)
    train(model, batches)
    if dist.get_rank() == 0:
        """
            + _EVALUATE.replace("\n", "\n    "),
        ),
    ),
]

ANSWERS = [*_HOOKS, *_BRANCHES, *_NORMS, *_SCRIPTS]
