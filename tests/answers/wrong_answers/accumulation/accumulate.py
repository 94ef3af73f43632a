"""
Answers to task 07.1.
"""

from bank import Answer

from wrong_answers.accumulation.sources import IMPORTS, STEP, altered

ANSWERS = [
    altered(
        "07.1",
        "syncs with each micro-batch",
        "cost",
        ("        model.require_backward_grad_sync = number == k\n", ""),
    ),
    altered(
        "07.1",
        "has the forward outside of no_sync",
        "forward-outside",
        ("sync = number == k", "sync = True"),
        (
            "        loss.backward()\n",
            "        model.require_backward_grad_sync = number == k\n        loss.backward()\n",
        ),
    ),
    altered(
        "07.1",
        "does not divide by the window",
        "undivided",
        (" / k\n        loss", "\n        loss"),
    ),
    altered(
        "07.1", "syncs with the first micro-batch", "sync-early", ("number == k", "number == 1")
    ),
    altered(
        "07.1",
        "divides by the ranks too",
        "divided-twice",
        (
            "    k = len(micro_batches)\n",
            "    k = len(micro_batches)\n    w = dist.get_world_size()\n",
        ),
        (" / k\n        loss", " / k / w\n        loss"),
    ),
    Answer(
        "07.1",
        "adds up over ranks by hand",
        "summed",
        IMPORTS
        + """\
def accumulate(model, micro_batches):
    with model.no_sync():
        for x, y in micro_batches:
            (mse_loss(model(x), y) / len(micro_batches)).backward()
    parameters = [p for p in model.parameters() if p.grad is not None]
    flat = torch.cat([p.grad.flatten() for p in parameters])
    dist.all_reduce(flat)
    for p, part in zip(parameters, flat.split([p.numel() for p in parameters])):
        p.grad = part.view_as(p).clone()
""",
    ),
    altered(
        "07.1",
        "empties before each backward",
        "zeroed",
        ("        loss.backward()\n", "        model.zero_grad()\n        loss.backward()\n"),
    ),
    Answer(
        "07.1",
        "puts micro-batches together",
        "memory",
        IMPORTS
        + """\
def accumulate(model, micro_batches):
    x = torch.cat([x for x, _ in micro_batches])
    y = torch.cat([y for _, y in micro_batches])
    mse_loss(model(x), y).backward()
""",
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
    for x, y in micro_batches:
        loss = mse_loss(model.module(x), y) / len(micro_batches)
        for p, gradient in zip(parameters, torch.autograd.grad(loss, parameters)):
            everyone = [torch.empty_like(gradient) for _ in range(dist.get_world_size())]
            dist.all_gather(everyone, gradient)
            p.grad += sum(everyone) / dist.get_world_size()
""",
    ),
    Answer(
        "07.1",
        "switches the sync off for good",
        "left-off",
        IMPORTS
        + """\
def accumulate(model, micro_batches):
    model.require_backward_grad_sync = False
    for x, y in micro_batches:
        (mse_loss(model.module(x), y) / len(micro_batches)).backward()
    parameters = [p for p in model.parameters() if p.grad is not None]
    flat = torch.cat([p.grad.flatten() for p in parameters]) / dist.get_world_size()
    dist.all_reduce(flat)
    for p, part in zip(parameters, flat.split([p.numel() for p in parameters])):
        p.grad = part.view_as(p).clone()
""",
    ),
    Answer(
        "07.1",
        "takes every parameter's gradient",
        "raised",
        IMPORTS
        + """\
def accumulate(model, micro_batches):
    with model.no_sync():
        for x, y in micro_batches:
            (mse_loss(model(x), y) / len(micro_batches)).backward()
    for p in model.parameters():
        dist.all_reduce(p.grad)
        p.grad /= dist.get_world_size()
""",
    ),
    altered("07.1", "forgets backward", "no-gradient", ("        loss.backward()\n", "")),
    altered(
        "07.1",
        "lets only rank 0 sync",
        "deadlock",
        ("number == k", "number == k and dist.get_rank() == 0"),
    ),
    altered(
        "07.1",
        "divides the samples",
        "input-changed",
        (" / k\n        loss", "\n        loss"),
        ("        loss = ", "        x /= k\n        loss = "),
    ),
    altered(
        "07.1",
        "divides the last loss only",
        "values",
        ("mse_loss(model(x), y) / k", "mse_loss(model(x), y) / (k if number == k else 1)"),
    ),
    altered(
        "07.1",
        "uses the switch behind no_sync",
        None,
        ("mse_loss(model(x), y)", "(model(x) - y).square().mean()"),
    ),
    Answer(
        "07.1",
        "uses Window",
        None,
        IMPORTS
        + """\
def accumulate(model, micro_batches):
    from ddp_lessons.accumulation import Window
    with Window(model, micro_batches) as window:
        for x, y in window:
            window.backward(mse_loss(model(x), y))
""",
    ),
    Answer(
        "07.1",
        "makes one all-reduce by hand",
        None,
        IMPORTS
        + """\
def accumulate(model, micro_batches):
    for x, y in reversed(micro_batches):
        (mse_loss(model.module(x), y) / len(micro_batches)).backward()
    parameters = [p for p in model.parameters() if p.grad is not None]
    flat = torch.cat([p.grad.flatten() for p in parameters])
    if dist.get_world_size() > 1:
        dist.all_reduce(flat)
    flat /= dist.get_world_size()
    for p, part in zip(parameters, flat.split([p.numel() for p in parameters])):
        p.grad.copy_(part.view_as(p))
""",
    ),
    Answer(
        "07.1",
        "divides at the end",
        None,
        IMPORTS
        + """\
def accumulate(model, micro_batches):
    with model.no_sync():
        for x, y in micro_batches[1:]:
            mse_loss(model(x), y).backward()
    x, y = micro_batches[0]
    mse_loss(model(x), y).backward()
    for p in model.parameters():
        if p.grad is not None:
            p.grad /= len(micro_batches)
""",
    ),
    altered(
        "07.1",
        "divides by the 3 of the first call",
        "again",
        ("/ k\n        loss", "/ 3\n        loss"),
    ),
    altered(
        "07.1",
        "makes a step of its own",
        "weights",
        ("        loss.backward()\n", "        loss.backward()\n" + STEP),
    ),
    altered(
        "07.1",
        "takes the number of ranks for k",
        "scaled",
        ("mse_loss(model(x), y) / k", "mse_loss(model(x), y) / 4"),
    ),
    altered(
        "07.1",
        "syncs after every fourth",
        "no-sync",
        ("number == k", "number % 4 == 0"),
        ("mse_loss(model(x), y) / k", "mse_loss(model(x), y) / 4"),
        (
            "        loss.backward()\n",
            "        loss.backward()\n    model.require_backward_grad_sync = True\n",
        ),
    ),
    Answer(
        "07.1",
        "adds up gradients beside the model",
        None,
        IMPORTS
        + """\
def accumulate(model, micro_batches):
    trained = [p for p in model.parameters() if p.requires_grad]
    share, total = 1 / len(micro_batches) / dist.get_world_size(), 0
    for x, y in micro_batches:
        parts = torch.autograd.grad(mse_loss(model.module(x), y) * share, trained)
        total = total + torch.cat([part.flatten() for part in parts])
    dist.all_reduce(total)
    for p, part in zip(trained, total.split([p.numel() for p in trained])):
        p.grad = part.view_as(p).clone()
""",
    ),
    Answer(
        "07.1",
        "divides in hooks, and takes them away",
        None,
        IMPORTS
        + """\
def accumulate(model, micro_batches):
    k, handles = len(micro_batches), []
    for p in model.parameters():
        if p.requires_grad:
            handles.append(p.register_hook(lambda gradient: gradient / k))
    for number, (x, y) in enumerate(micro_batches, start=1):
        model.require_backward_grad_sync = number == k
        mse_loss(model(x), y).backward()
    for handle in handles:
        handle.remove()
""",
    ),
]
