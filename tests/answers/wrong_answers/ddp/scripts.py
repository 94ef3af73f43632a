"""
Answers to task 06.4.
"""

from bank import Answer, changed

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

_ALONE = "train(net, batches)\n    with torch.no_grad():\n        for p in net.parameters():\n"

_STEPS = """\
model = DDP(net)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.125)
    for inputs, targets in batches:
        optimizer.zero_grad()
        loss = mse_loss(model(inputs), targets)
        loss.backward()
        optimizer.step()
"""

_BY_HAND = """\
optimizer = torch.optim.SGD(net.parameters(), lr=0.125)
    for inputs, targets in batches:
        optimizer.zero_grad()
        mse_loss(net(inputs), targets).backward()
        for parameter in net.parameters():
            dist.all_reduce(parameter.grad)
            parameter.grad /= {}
        optimizer.step()"""


def _evaluates(old, new):
    return _scripts(script_4=changed(_RIGHT[4], (old, new)))


def _takes(source):
    each = f"    for one in (net.norm.running_mean, net.norm.running_var):\n        {source}\n"
    return _evaluates("    if dist", f"{each}    if dist")


def _pooled(model):
    body = _RIGHT[4].replace("DDP(net)", model)
    body = body.replace("    if", "    pool_batch_norm(net, len(batches[0][0]))\n    if", 1)
    return f"from ddp_lessons.ddp import pool_batch_norm\n    {body}"


def _spare(how, sizes):
    return f"""\
model, whole = DDP(net), net.forward
    net.forward = lambda x: whole(x) + {how} * net.spare(torch.ones({sizes}, 8).double()).sum()
    train(model, batches)"""


ANSWERS = [
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
        "returns the mean of the test losses of all ranks",
        "mean-of-losses",
        _scripts(
            script_4="""\
train(DDP(net), batches)
    net.eval()
    with torch.no_grad():
        loss = mse_loss(net(test[0]), test[1])
    dist.all_reduce(loss)
    return loss.item() / dist.get_world_size()"""
        ),
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
        "scaled",
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
    Answer("06.4", "trains the spare head", "values", _scripts(script_3=_spare(1, 1))),
    Answer(
        "06.4",
        "averages weights when all is over",
        "made-one",
        _scripts(
            script_1=f"{_ALONE}            dist.all_reduce(p)\n"
            "            p /= dist.get_world_size()"
        ),
    ),
    Answer(
        "06.4",
        "adds up statistics",
        "statistics",
        _takes("dist.all_reduce(one)"),
    ),
    Answer(
        "06.4",
        "gathers losses for a log, has the spare head in the loss, and pools statistics",
        None,
        _scripts(
            script_1=f"""\
{_STEPS}\
        everyone = [torch.empty_like(loss.detach()) for _ in range(dist.get_world_size())]
        dist.all_gather(everyone, loss.detach())""",
            script_3=_spare(0, 2),
            script_4=_pooled("DDP(net)"),
        ),
    ),
    Answer(
        "06.4",
        "pools statistics in every step",
        None,
        _scripts(
            script_1=_BY_HAND.format("dist.get_world_size()"),
            script_4=_pooled("DDP(net, broadcast_buffers=False)").replace(
                "train(model, batches)",
                """\
for batch in batches:
        train(model, [batch])
        for one in net.norm.running_mean, net.norm.running_var:
            dist.all_reduce(one)
            one /= dist.get_world_size()""",
            ),
        ),
    ),
    Answer(
        "06.4",
        "pools statistics of which each rank has its own",
        None,
        _scripts(script_4=_pooled("DDP(net, broadcast_buffers=False)")),
    ),
]
