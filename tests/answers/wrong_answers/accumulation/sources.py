"""
Sources from which the answers of exercise 07 are made.
"""

from bank import changing

IMPORTS = """\
import torch
import torch.distributed as dist
from torch.nn.functional import mse_loss


"""

ACCUMULATE = """\
def accumulate(model, micro_batches):
    num_samples, following = 0, next(micro_batches)
    while following is not None:
        (x, y), following = following, next(micro_batches, None)
        model.require_backward_grad_sync = following is None
        loss = mse_loss(model(x), y, reduction="sum")
        loss.backward()
        num_samples += len(y)
    for p in model.parameters():
        if p.grad is not None:
            p.grad /= num_samples
"""

TRAIN = """\
def train_epoch(model, optimizer, batches, k):
    for start in range(0, len(batches), k):
        window = batches[start : start + k]
        total = sum(len(y) for _, y in window)
        for number, (x, y) in enumerate(window, start=1):
            model.require_backward_grad_sync = number == len(window)
            loss = mse_loss(model(x), y) * len(y) / total
            loss.backward()
        optimizer.step()
        optimizer.zero_grad()
"""

CLIP = """\
def clipped_window(model, micro_batches, max_norm):
    k = len(micro_batches)
    for number, (x, y) in enumerate(micro_batches, start=1):
        model.require_backward_grad_sync = number == k
        loss = mse_loss(model(x), y) / k
        loss.backward()
    gradients = [p.grad for p in model.parameters() if p.grad is not None]
    norm = torch.cat([g.flatten() for g in gradients]).norm()
    if norm > max_norm:
        for g in gradients:
            g.mul_(max_norm / norm)
    return norm
"""

PLATEAU = """\
def plateau_step(schedule, total, num_samples):
    both = torch.tensor([total, num_samples], dtype=torch.float64)
    dist.all_reduce(both)
    mean = (both[0] / both[1]).item()
    schedule.step(mean)
    return mean
"""

SOURCES = {"07.1": ACCUMULATE, "07.2": TRAIN, "07.3": CLIP, "07.4": PLATEAU}

FIRST = {  # the line with which a task begins
    "07.2": "    for start in",
    "07.3": "    k = len(micro_batches)\n",
}

LAST = {  # the line before which all gradients are computed
    "07.2": "        optimizer.step()\n",
    "07.3": "    gradients = [",
}

LOOP = "    for p in model.parameters():\n"

TRAINED = "    for p in filter(lambda p: p.requires_grad, model.parameters()):\n"

ZEROS = LOOP + "        if p.grad is None: p.grad = torch.zeros_like(p)\n"

OFF = "    model.require_backward_grad_sync = False\n"

STEP = "    torch.optim.SGD(model.parameters(), lr=0.1).step()\n"

altered = changing({number: IMPORTS + source for number, source in SOURCES.items()})


def at_first(number, what, mistake, lines):
    return altered(number, what, mistake, (FIRST[number], lines + FIRST[number]))


def at_end(number, what, mistake, lines, *pairs):
    """
    Insert lines where all gradients are computed. The lines are indented as in 07.3.
    """
    last = LAST[number]
    if number == "07.2":
        lines = "".join(f"    {line}\n" for line in lines.splitlines())
    return altered(number, what, mistake, (last, lines + last), *pairs)


BY_HAND = ("07.2", "07.3")

BY_FOUR = """\
    model.require_backward_grad_sync = True
    both = [p.grad for p in model.parameters() if p.grad is not None]
    flat = torch.cat([one.flatten() for one in both])
    dist.all_reduce(flat)
    for one, part in zip(both, flat.split([one.numel() for one in both])):
        one.copy_(part.view_as(one) / 4)
"""

HALVES = "        p.grad.copy_(p.grad.bfloat16())\n"
