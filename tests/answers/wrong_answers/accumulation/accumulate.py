"""
Answers to task 07.1.
"""

from bank import Answer

from wrong_answers.accumulation.sources import IMPORTS, altered

DIVIDED = "        if p.grad is not None:\n            p.grad /= num_samples\n"

SUM = 'mse_loss(model(x), y, reduction="sum")'

ANSWERS = [
    Answer(
        "07.1",
        "asks the iterator for its length",
        "length",
        IMPORTS
        + """\
def accumulate(model, micro_batches):
    k = len(micro_batches)
    for number, (x, y) in enumerate(micro_batches, start=1):
        model.require_backward_grad_sync = number == k
        (mse_loss(model(x), y) / k).backward()
""",
    ),
    altered("07.1", "forgets backward", "nothing", ("        loss.backward()\n", "")),
    altered("07.1", "never syncs", "no-sync", ("= following is None", "= False")),
    altered(
        "07.1",
        "takes the mean of means",
        "mean-of-means",
        (SUM, "mse_loss(model(x), y)"),
        ("num_samples += len(y)", "num_samples += 1"),
    ),
    altered("07.1", "does not divide", "undivided", (DIVIDED, "        p.requires_grad\n")),
    altered(
        "07.1",
        "empties before each backward",
        "zeroed",
        ("        loss.backward()\n", "        model.zero_grad()\n        loss.backward()\n"),
    ),
    altered(
        "07.1",
        "divides by the ranks too",
        "ranks",
        ("p.grad /= num_samples", "p.grad /= num_samples * dist.get_world_size()"),
    ),
    altered(
        "07.1",
        "counts the last micro-batch twice",
        "values",
        (SUM, SUM + " * (1 + (following is None))"),
    ),
    altered(
        "07.1",
        "gives the frozen parameter zeros",
        "frozen-gradient",
        (DIVIDED, DIVIDED + "        else:\n            p.grad = torch.zeros_like(p)\n"),
    ),
    altered(
        "07.1",
        "has the forward outside of no_sync",
        "forward-outside",
        ("sync = following is None", "sync = True"),
        (
            "        loss.backward()\n",
            "        model.require_backward_grad_sync = following is None\n"
            "        loss.backward()\n",
        ),
    ),
    altered(
        "07.1",
        "syncs with each micro-batch",
        "cost",
        ("        model.require_backward_grad_sync = following is None\n", ""),
    ),
    Answer(
        "07.1",
        "makes a list, and uses Window",
        "listed",
        IMPORTS
        + """\
def accumulate(model, micro_batches):
    from ddp_lessons.accumulation import Window
    micro_batches = list(micro_batches)
    with Window(model, micro_batches, [len(y) for _, y in micro_batches]) as window:
        for x, y in window:
            window.backward(mse_loss(model(x), y))
""",
    ),
    Answer(
        "07.1",
        "puts micro-batches together",
        "memory",
        IMPORTS
        + """\
def accumulate(model, micro_batches):
    inputs, targets = zip(*micro_batches)
    mse_loss(model(torch.cat(inputs)), torch.cat(targets)).backward()
""",
    ),
    altered(
        "07.1",
        "leaves the sync off",
        "left-off",
        (DIVIDED, DIVIDED + "    model.require_backward_grad_sync = False\n"),
    ),
    altered(
        "07.1",
        "overwrites the samples that it has used",
        "input-changed",
        ("num_samples += len(y)\n", "num_samples += len(y)\n        x.zero_()\n"),
    ),
    altered(
        "07.1",
        "counts samples on from call to call",
        "again",
        ("(model, micro_batches)", "(model, micro_batches, totals=[0])"),
        ("num_samples += len(y)", "totals[0] += len(y)"),
        ("p.grad /= num_samples", "p.grad /= totals[0]"),
    ),
    altered(
        "07.1",
        "leaves the model in eval mode",
        "left-changed",
        ("    num_samples, ", "    model.eval()\n    num_samples, "),
    ),
    Answer(
        "07.1",
        "gathers the gradients of each micro-batch",
        "forbidden",
        IMPORTS
        + """\
def accumulate(model, micro_batches):
    parameters = [p for p in model.parameters() if p.requires_grad]
    for p in parameters:
        p.grad = torch.zeros_like(p)
    num_samples = 0
    for x, y in micro_batches:
        loss = mse_loss(model.module(x), y, reduction="sum")
        num_samples += len(y)
        for p, gradient in zip(parameters, torch.autograd.grad(loss, parameters)):
            everyone = [torch.empty_like(gradient) for _ in range(dist.get_world_size())]
            dist.all_gather(everyone, gradient)
            p.grad += sum(everyone) / dist.get_world_size()
    for p in parameters:
        p.grad /= num_samples
""",
    ),
    altered(
        "07.1",
        "divides the gradient of each parameter",
        "raised",
        (DIVIDED, "        p.grad /= num_samples\n"),
    ),
    altered(
        "07.1",
        "lets only rank 0 sync",
        "deadlock",
        ("= following is None", "= following is None and dist.get_rank() == 0"),
    ),
    altered(
        "07.1",
        "uses the switch behind no_sync",
        None,
        (SUM, "(model(x) - y).square().sum()"),
    ),
    Answer(
        "07.1",
        "makes one all-reduce by hand, and looks at nothing ahead",
        None,
        IMPORTS
        + """\
def accumulate(model, micro_batches):
    num_samples = 0
    for x, y in micro_batches:
        mse_loss(model.module(x), y, reduction="sum").backward()
        num_samples += len(y)
    parameters = [p for p in model.parameters() if p.grad is not None]
    flat = torch.cat([p.grad.flatten() for p in parameters])
    dist.all_reduce(flat)
    flat /= dist.get_world_size() * num_samples
    for p, part in zip(parameters, flat.split([p.numel() for p in parameters])):
        p.grad.copy_(part.view_as(p))
""",
    ),
    Answer(
        "07.1",
        "keeps a running mean",
        None,
        IMPORTS
        + """\
def accumulate(model, micro_batches):
    from contextlib import nullcontext

    num_samples, following = 0, next(micro_batches)
    while following:
        (x, y), following = following, next(micro_batches, None)
        earlier = num_samples / (num_samples + len(y))
        num_samples += len(y)
        for p in model.parameters():
            if p.grad is not None:
                p.grad *= earlier
        with model.no_sync() if following else nullcontext():
            (mse_loss(model(x), y) * (1 - earlier)).backward()
""",
    ),
]
