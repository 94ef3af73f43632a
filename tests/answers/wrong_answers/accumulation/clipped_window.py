"""
Answers to task 07.3.
"""

from bank import Answer

from wrong_answers.accumulation.sources import IMPORTS, OFF, STEP, TRAINED, altered

GRADIENTS = "    gradients = [p.grad for p in model.parameters() if p.grad is not None]\n"

NORM = "    norm = torch.cat([g.flatten() for g in gradients]).norm()\n"

SCALE = "        for g in gradients:\n            g.mul_(max_norm / norm)\n"

CLIPPED = "    if norm > max_norm:\n" + SCALE

ANSWERS = [
    altered(
        "07.3",
        "clips after each micro-batch",
        "each-time",
        (
            "        loss.backward()\n",
            "        loss.backward()\n"
            "        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), max_norm)\n",
        ),
        (
            GRADIENTS + NORM + CLIPPED,
            "",
        ),
    ),
    Answer(
        "07.3",
        "clips before the sync",
        "before-sync",
        IMPORTS
        + """\
def clipped_window(model, micro_batches, max_norm):
    with model.no_sync():
        for x, y in micro_batches:
            (mse_loss(model(x), y) / len(micro_batches)).backward()
    norm = torch.nn.utils.clip_grad_norm_(model.parameters(), max_norm)
    gradients = [p.grad for p in model.parameters() if p.grad is not None]
    flat = torch.cat([g.flatten() for g in gradients])
    dist.all_reduce(flat)
    flat /= dist.get_world_size()
    for g, part in zip(gradients, flat.split([g.numel() for g in gradients])):
        g.copy_(part.view_as(g))
    return norm
""",
    ),
    altered(
        "07.3",
        "clips each parameter by itself",
        "each-parameter",
        (
            CLIPPED,
            "    for g in gradients:\n        g.mul_(min(1, max_norm / g.norm()))\n",
        ),
    ),
    altered(
        "07.3",
        "clips each number",
        "each-number",
        (
            CLIPPED,
            "    torch.nn.utils.clip_grad_value_(model.parameters(), max_norm)\n",
        ),
    ),
    altered(
        "07.3",
        "adds squares up over ranks",
        "length-shared",
        (
            NORM,
            "    squares = sum(g.square().sum() for g in gradients)\n"
            "    dist.all_reduce(squares)\n    norm = squares.sqrt()\n",
        ),
    ),
    altered(
        "07.3",
        "adds up lengths",
        "sum-of-lengths",
        (
            NORM,
            "    norm = sum(g.norm() for g in gradients)\n",
        ),
    ),
    altered(
        "07.3",
        "forgets the root",
        "no-root",
        (
            NORM,
            "    norm = sum(g.square().sum() for g in gradients)\n",
        ),
    ),
    altered(
        "07.3",
        "returns the length afterwards",
        "length-after",
        ("    return norm", "    return torch.cat([g.flatten() for g in gradients]).norm()"),
    ),
    altered(
        "07.3",
        "does not divide by the window",
        "undivided",
        (" / k\n        loss", "\n        loss"),
    ),
    altered(
        "07.3",
        "never syncs",
        "no-sync",
        ("= number == k", "= False"),
        ("    return norm", "    model.require_backward_grad_sync = True\n    return norm"),
    ),
    Answer(
        "07.3",
        "goes by each rank's own length",
        "own-length",
        IMPORTS
        + """\
def clipped_window(model, micro_batches, max_norm):
    k = len(micro_batches)
    with model.no_sync():
        for x, y in micro_batches:
            (mse_loss(model(x), y) / k).backward()
    gradients = [p.grad for p in model.parameters() if p.grad is not None]
    norm = torch.cat([g.flatten() for g in gradients]).norm()
    flat = torch.cat([g.flatten() for g in gradients])
    dist.all_reduce(flat)
    flat *= min(1, max_norm / norm) / dist.get_world_size()
    for g, part in zip(gradients, flat.split([g.numel() for g in gradients])):
        g.copy_(part.view_as(g))
    return norm
""",
    ),
    altered(
        "07.3",
        "syncs with each micro-batch",
        "cost",
        ("        model.require_backward_grad_sync = number == k\n", ""),
    ),
    altered("07.3", "returns nothing", "nothing", ("    return norm\n", "")),
    Answer(
        "07.3",
        "puts micro-batches together",
        "memory",
        IMPORTS
        + """\
def clipped_window(model, micro_batches, max_norm):
    x = torch.cat([x for x, _ in micro_batches])
    y = torch.cat([y for _, y in micro_batches])
    mse_loss(model(x), y).backward()
    return torch.nn.utils.clip_grad_norm_(model.parameters(), max_norm)
""",
    ),
    Answer(
        "07.3",
        "puts nothing into .grad",
        "no-gradient",
        IMPORTS
        + """\
def clipped_window(model, micro_batches, max_norm):
    parameters = [p for p in model.parameters() if p.requires_grad]
    total = [torch.zeros_like(p) for p in parameters]
    for x, y in micro_batches:
        loss = mse_loss(model.module(x), y) / len(micro_batches)
        for one, part in zip(total, torch.autograd.grad(loss, parameters)):
            one += part
    flat = torch.cat([one.flatten() for one in total])
    dist.all_reduce(flat)
    flat /= dist.get_world_size()
    norm = flat.norm()
    flat *= min(1, max_norm / norm)
    return norm
""",
    ),
    altered(
        "07.3",
        "returns a length for each parameter",
        "no-length",
        (
            CLIPPED,
            "    lengths = [g.norm().item() for g in gradients]\n" + CLIPPED,
        ),
        ("return norm", "return lengths"),
    ),
    Answer(
        "07.3",
        "uses torch's own",
        None,
        IMPORTS
        + """\
def clipped_window(model, micro_batches, max_norm):
    k = len(micro_batches)
    for number, (x, y) in enumerate(micro_batches, start=1):
        model.require_backward_grad_sync = number == k
        (mse_loss(model(x), y) / k).backward()
    return torch.nn.utils.clip_grad_norm_(model.parameters(), max_norm)
""",
    ),
    Answer(
        "07.3",
        "uses the package",
        None,
        IMPORTS
        + """\
def clipped_window(model, micro_batches, max_norm):
    from ddp_lessons.accumulation import Window, clip_gradients
    with Window(model, micro_batches) as window:
        for x, y in window:
            window.backward(mse_loss(model(x), y))
    return clip_gradients(model.parameters(), max_norm).item()
""",
    ),
    altered(
        "07.3",
        "makes an all-reduce for each parameter",
        "own-message",
        ("= number == k", "= False"),
        (
            "    gradients = [",
            "    model.require_backward_grad_sync = True\n"
            + TRAINED
            + "        dist.all_reduce(p.grad)\n"
            + "        p.grad /= dist.get_world_size()\n"
            + "    gradients = [",
        ),
    ),
    altered(
        "07.3", "leaves the sync off", "left-off", ("    return norm", OFF + "    return norm")
    ),
    altered(
        "07.3",
        "asks the square whether it is too long",
        "scaled-up",
        ("if norm >", "if norm * norm >"),
    ),
    altered(
        "07.3",
        "remembers the length",
        "again",
        ("return norm", "return vars(model).setdefault('norm', norm.item())"),
    ),
    altered(
        "07.3", "makes a step of its own", "weights", ("    return norm", STEP + "    return norm")
    ),
    altered(
        "07.3",
        "divides a float by the length",
        "raised",
        (
            "    if norm > max_norm:\n",
            "    norm = norm.item()\n    scale = min(1.0, max_norm / norm)\n    if True:\n",
        ),
        ("max_norm / norm)\n    return", "scale)\n    return"),
    ),
    altered(
        "07.3",
        "makes a unit vector first",
        "zero-length",
        (
            CLIPPED,
            "    for g in gradients:\n        g.copy_(g / norm * min(norm, max_norm))\n",
        ),
    ),
    altered("07.3", "adds up absolute values", "scaled", (".norm()", ".norm(1)")),
    altered(
        "07.3",
        "returns the factor",
        "other-length",
        ("return norm", "return min(1.0, max_norm / norm)"),
    ),
    altered(
        "07.3",
        "scales the weights",
        "not-clipped",
        (SCALE, "        for p in model.parameters():\n            p.data.mul_(max_norm / norm)\n"),
    ),
    altered(
        "07.3",
        "adds a weight decay",
        "values",
        ("    gradients = [", TRAINED + "        p.grad += 0.1 * p.detach()\n    gradients = ["),
    ),
    altered(
        "07.3",
        "takes micro-batches out of the list",
        "input-changed",
        ("    return norm", "    micro_batches.clear()\n    return norm"),
    ),
    altered(
        "07.3",
        "puts new tensors into .grad, whatever the length",
        None,
        (
            CLIPPED,
            "    factor = torch.clamp(max_norm / (norm + 1e-6), max=1.0)\n"
            "    for p in model.parameters():\n"
            "        p.grad = None if p.grad is None else p.grad * factor\n",
        ),
    ),
]
