"""
Answers to exercise 07.
"""

from bank import Answer

IMPORTS = """\
import torch
import torch.distributed as dist
from torch.nn.functional import mse_loss


"""

ANSWERS = [
    Answer(
        "07.1",
        "syncs with each micro-batch",
        "cost",
        IMPORTS
        + """\
def accumulate(model, micro_batches):
    for x, y in micro_batches:
        (mse_loss(model(x), y) / len(micro_batches)).backward()
""",
    ),
    Answer(
        "07.1",
        "has the forward outside of no_sync",
        "forward-outside",
        IMPORTS
        + """\
def accumulate(model, micro_batches):
    k = len(micro_batches)
    for number, (x, y) in enumerate(micro_batches, start=1):
        loss = mse_loss(model(x), y) / k
        if number < k:
            with model.no_sync():
                loss.backward()
        else:
            loss.backward()
""",
    ),
    Answer(
        "07.1",
        "has everything inside no_sync",
        "no-sync",
        IMPORTS
        + """\
def accumulate(model, micro_batches):
    with model.no_sync():
        for x, y in micro_batches:
            (mse_loss(model(x), y) / len(micro_batches)).backward()
""",
    ),
    Answer(
        "07.1",
        "does not divide by the window",
        "undivided",
        IMPORTS
        + """\
def accumulate(model, micro_batches):
    with model.no_sync():
        for x, y in micro_batches[:-1]:
            mse_loss(model(x), y).backward()
    x, y = micro_batches[-1]
    mse_loss(model(x), y).backward()
""",
    ),
    Answer(
        "07.1",
        "syncs with the first micro-batch",
        "sync-early",
        IMPORTS
        + """\
def accumulate(model, micro_batches):
    k = len(micro_batches)
    x, y = micro_batches[0]
    (mse_loss(model(x), y) / k).backward()
    with model.no_sync():
        for x, y in micro_batches[1:]:
            (mse_loss(model(x), y) / k).backward()
""",
    ),
    Answer(
        "07.1",
        "divides by the ranks too",
        "divided-twice",
        IMPORTS
        + """\
def accumulate(model, micro_batches):
    share = 1 / len(micro_batches) / dist.get_world_size()
    with model.no_sync():
        for x, y in micro_batches[:-1]:
            (mse_loss(model(x), y) * share).backward()
    x, y = micro_batches[-1]
    (mse_loss(model(x), y) * share).backward()
""",
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
    Answer(
        "07.1",
        "empties before each backward",
        "zeroed",
        IMPORTS
        + """\
def accumulate(model, micro_batches):
    k = len(micro_batches)
    for number, (x, y) in enumerate(micro_batches, start=1):
        model.require_backward_grad_sync = number == k
        model.zero_grad()
        (mse_loss(model(x), y) / k).backward()
""",
    ),
    Answer(
        "07.1",
        "takes the last gradient that a hook sees",
        "zeroed",
        IMPORTS
        + """\
def accumulate(model, micro_batches):
    k, seen = len(micro_batches), {}
    parameters = [p for p in model.parameters() if p.requires_grad]
    handles = [p.register_hook(lambda g, p=p: seen.__setitem__(p, g.clone())) for p in parameters]
    with model.no_sync():
        for x, y in micro_batches:
            (mse_loss(model(x), y) / k).backward()
    for handle in handles:
        handle.remove()
    flat = torch.cat([seen[p].flatten() for p in parameters]) / dist.get_world_size()
    dist.all_reduce(flat)
    for p, part in zip(parameters, flat.split([p.numel() for p in parameters])):
        p.grad = part.view_as(p).clone()
""",
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
        "has one backward for all losses",
        "memory",
        IMPORTS
        + """\
def accumulate(model, micro_batches):
    k, total = len(micro_batches), 0
    with model.no_sync():
        for x, y in micro_batches[:-1]:
            total = total + mse_loss(model(x), y) / k
    x, y = micro_batches[-1]
    total = total + mse_loss(model(x), y) / k
    total.backward()
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
        "makes an all-reduce for each parameter",
        "own-message",
        IMPORTS
        + """\
def accumulate(model, micro_batches):
    with model.no_sync():
        for x, y in micro_batches:
            (mse_loss(model(x), y) / len(micro_batches)).backward()
    for p in model.parameters():
        if p.grad is not None:
            dist.all_reduce(p.grad)
            p.grad /= dist.get_world_size()
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
    Answer(
        "07.1",
        "forgets backward",
        "no-gradient",
        IMPORTS
        + """\
def accumulate(model, micro_batches):
    for x, y in micro_batches:
        mse_loss(model(x), y)
""",
    ),
    Answer(
        "07.1",
        "lets only rank 0 sync",
        "deadlock",
        IMPORTS
        + """\
def accumulate(model, micro_batches):
    k = len(micro_batches)
    for number, (x, y) in enumerate(micro_batches, start=1):
        model.require_backward_grad_sync = number == k and dist.get_rank() == 0
        (mse_loss(model(x), y) / k).backward()
""",
    ),
    Answer(
        "07.1",
        "divides the samples",
        "input-changed",
        IMPORTS
        + """\
def accumulate(model, micro_batches):
    for number, (x, y) in enumerate(micro_batches, start=1):
        x /= len(micro_batches)
        model.require_backward_grad_sync = number == len(micro_batches)
        mse_loss(model(x), y).backward()
""",
    ),
    Answer(
        "07.1",
        "divides the last loss only",
        "values",
        IMPORTS
        + """\
def accumulate(model, micro_batches):
    with model.no_sync():
        for x, y in micro_batches[:-1]:
            mse_loss(model(x), y).backward()
    x, y = micro_batches[-1]
    (mse_loss(model(x), y) / len(micro_batches)).backward()
""",
    ),
    Answer(
        "07.1",
        "uses the switch behind no_sync",
        None,
        IMPORTS
        + """\
def accumulate(model, micro_batches):
    k = len(micro_batches)
    for number, (x, y) in enumerate(micro_batches, start=1):
        model.require_backward_grad_sync = number == k
        difference = model(x) - y
        ((difference * difference).mean() / k).backward()
""",
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
    Answer(
        "07.2",
        "steps after every k-th batch",
        "lost",
        IMPORTS
        + """\
def train_epoch(model, optimizer, batches, k):
    for number, (x, y) in enumerate(batches, start=1):
        model.require_backward_grad_sync = number % k == 0
        (mse_loss(model(x), y) / k).backward()
        if number % k == 0:
            optimizer.step()
            optimizer.zero_grad()
    model.require_backward_grad_sync = True
""",
    ),
    Answer(
        "07.2",
        "does not sync the shorter window",
        "no-sync",
        IMPORTS
        + """\
def train_epoch(model, optimizer, batches, k):
    for number, (x, y) in enumerate(batches, start=1):
        model.require_backward_grad_sync = number % k == 0
        (mse_loss(model(x), y) / k).backward()
        if number % k == 0 or number == len(batches):
            optimizer.step()
            optimizer.zero_grad()
    model.require_backward_grad_sync = True
""",
    ),
    Answer(
        "07.2",
        "divides by k at the end too",
        "by-k",
        IMPORTS
        + """\
def train_epoch(model, optimizer, batches, k):
    for number, (x, y) in enumerate(batches, start=1):
        is_last = number % k == 0 or number == len(batches)
        model.require_backward_grad_sync = is_last
        (mse_loss(model(x), y) / k).backward()
        if is_last:
            optimizer.step()
            optimizer.zero_grad()
""",
    ),
    Answer(
        "07.2",
        "takes the mean of means",
        "mean-of-means",
        IMPORTS
        + """\
def train_epoch(model, optimizer, batches, k):
    for start in range(0, len(batches), k):
        window = batches[start:start + k]
        for number, (x, y) in enumerate(window, start=1):
            model.require_backward_grad_sync = number == len(window)
            (mse_loss(model(x), y) / len(window)).backward()
        optimizer.step()
        optimizer.zero_grad()
""",
    ),
    Answer(
        "07.2",
        "does not divide",
        "undivided",
        IMPORTS
        + """\
def train_epoch(model, optimizer, batches, k):
    for start in range(0, len(batches), k):
        window = batches[start:start + k]
        for number, (x, y) in enumerate(window, start=1):
            model.require_backward_grad_sync = number == len(window)
            mse_loss(model(x), y).backward()
        optimizer.step()
        optimizer.zero_grad()
""",
    ),
    Answer(
        "07.2",
        "syncs with every batch",
        "cost",
        IMPORTS
        + """\
def train_epoch(model, optimizer, batches, k):
    for start in range(0, len(batches), k):
        window = batches[start:start + k]
        total = sum(len(y) for _, y in window)
        for x, y in window:
            (mse_loss(model(x), y) * len(y) / total).backward()
        optimizer.step()
        optimizer.zero_grad()
""",
    ),
    Answer(
        "07.2",
        "empties before the step",
        "zeroed-first",
        IMPORTS
        + """\
def train_epoch(model, optimizer, batches, k):
    for start in range(0, len(batches), k):
        window = batches[start:start + k]
        total = sum(len(y) for _, y in window)
        for number, (x, y) in enumerate(window, start=1):
            model.require_backward_grad_sync = number == len(window)
            (mse_loss(model(x), y) * len(y) / total).backward()
        optimizer.zero_grad()
        optimizer.step()
""",
    ),
    Answer(
        "07.2",
        "never empties",
        "not-zeroed",
        IMPORTS
        + """\
def train_epoch(model, optimizer, batches, k):
    for start in range(0, len(batches), k):
        window = batches[start:start + k]
        total = sum(len(y) for _, y in window)
        for number, (x, y) in enumerate(window, start=1):
            model.require_backward_grad_sync = number == len(window)
            (mse_loss(model(x), y) * len(y) / total).backward()
        optimizer.step()
""",
    ),
    Answer(
        "07.2",
        "empties within the window",
        "zeroed",
        IMPORTS
        + """\
def train_epoch(model, optimizer, batches, k):
    for start in range(0, len(batches), k):
        window = batches[start:start + k]
        total = sum(len(y) for _, y in window)
        for number, (x, y) in enumerate(window, start=1):
            model.require_backward_grad_sync = number == len(window)
            optimizer.zero_grad()
            (mse_loss(model(x), y) * len(y) / total).backward()
        optimizer.step()
""",
    ),
    Answer(
        "07.2",
        "steps after each batch",
        "each-batch",
        IMPORTS
        + """\
def train_epoch(model, optimizer, batches, k):
    for x, y in batches:
        mse_loss(model(x), y).backward()
        optimizer.step()
        optimizer.zero_grad()
""",
    ),
    Answer(
        "07.2",
        "puts a window into one forward",
        "memory",
        IMPORTS
        + """\
def train_epoch(model, optimizer, batches, k):
    for start in range(0, len(batches), k):
        window = batches[start:start + k]
        x = torch.cat([x for x, _ in window])
        y = torch.cat([y for _, y in window])
        mse_loss(model(x), y).backward()
        optimizer.step()
        optimizer.zero_grad()
""",
    ),
    Answer(
        "07.2",
        "forgets the step",
        "no-step",
        IMPORTS
        + """\
def train_epoch(model, optimizer, batches, k):
    for start in range(0, len(batches), k):
        window = batches[start:start + k]
        total = sum(len(y) for _, y in window)
        for number, (x, y) in enumerate(window, start=1):
            model.require_backward_grad_sync = number == len(window)
            (mse_loss(model(x), y) * len(y) / total).backward()
        optimizer.zero_grad()
""",
    ),
    Answer(
        "07.2",
        "lets only rank 0 step for what is left over",
        "not-all-step",
        IMPORTS
        + """\
def train_epoch(model, optimizer, batches, k):
    for start in range(0, len(batches), k):
        window = batches[start:start + k]
        total = sum(len(y) for _, y in window)
        for number, (x, y) in enumerate(window, start=1):
            model.require_backward_grad_sync = number == len(window)
            (mse_loss(model(x), y) * len(y) / total).backward()
        if len(window) == k or dist.get_rank() == 0:
            optimizer.step()
        optimizer.zero_grad()
""",
    ),
    Answer(
        "07.2",
        "has the forward outside of no_sync",
        "forward-outside",
        IMPORTS
        + """\
def train_epoch(model, optimizer, batches, k):
    for start in range(0, len(batches), k):
        window = batches[start:start + k]
        total = sum(len(y) for _, y in window)
        for number, (x, y) in enumerate(window, start=1):
            loss = mse_loss(model(x), y) * len(y) / total
            if number < len(window):
                with model.no_sync():
                    loss.backward()
            else:
                loss.backward()
        optimizer.step()
        optimizer.zero_grad()
""",
    ),
    Answer(
        "07.2",
        "divides by the ranks too",
        "divided-twice",
        IMPORTS
        + """\
def train_epoch(model, optimizer, batches, k):
    for start in range(0, len(batches), k):
        window = batches[start:start + k]
        total = sum(len(y) for _, y in window)
        total *= dist.get_world_size()
        for number, (x, y) in enumerate(window, start=1):
            model.require_backward_grad_sync = number == len(window)
            (mse_loss(model(x), y) * len(y) / total).backward()
        optimizer.step()
        optimizer.zero_grad()
""",
    ),
    Answer(
        "07.2",
        "takes one batch less",
        "num-steps",
        IMPORTS
        + """\
def train_epoch(model, optimizer, batches, k):
    for start in range(0, len(batches), k - 1):
        window = batches[start:start + k - 1]
        total = sum(len(y) for _, y in window)
        for number, (x, y) in enumerate(window, start=1):
            model.require_backward_grad_sync = number == len(window)
            (mse_loss(model(x), y) * len(y) / total).backward()
        optimizer.step()
        optimizer.zero_grad()
""",
    ),
    Answer(
        "07.2",
        "adds up sums",
        "scaled",
        IMPORTS
        + """\
def train_epoch(model, optimizer, batches, k):
    for start in range(0, len(batches), k):
        window = batches[start:start + k]
        total = sum(len(y) for _, y in window)
        for number, (x, y) in enumerate(window, start=1):
            model.require_backward_grad_sync = number == len(window)
            mse_loss(model(x), y, reduction="sum").backward()
        optimizer.step()
        optimizer.zero_grad()
""",
    ),
    Answer(
        "07.2",
        "uses windows and Window",
        None,
        IMPORTS
        + """\
def train_epoch(model, optimizer, batches, k):
    from ddp_lessons.accumulation import Window, windows
    for part in windows(batches, k):
        optimizer.zero_grad()
        with Window(model, part, [len(y) for _, y in part]) as window:
            for x, y in window:
                window.backward(mse_loss(model(x), y))
        optimizer.step()
""",
    ),
    Answer(
        "07.2",
        "divides sums before the step",
        None,
        IMPORTS
        + """\
def train_epoch(model, optimizer, batches, k):
    num_samples = 0
    for number, (x, y) in enumerate(batches, start=1):
        is_last = number % k == 0 or number == len(batches)
        model.require_backward_grad_sync = is_last
        mse_loss(model(x), y, reduction="sum").backward()
        num_samples += len(y)
        if is_last:
            for p in model.parameters():
                if p.grad is not None:
                    p.grad.div_(num_samples)
            optimizer.step()
            optimizer.zero_grad()
            num_samples = 0
""",
    ),
    Answer(
        "07.3",
        "clips after each micro-batch",
        "each-time",
        IMPORTS
        + """\
def clipped_window(model, micro_batches, max_norm):
    k = len(micro_batches)
    for number, (x, y) in enumerate(micro_batches, start=1):
        model.require_backward_grad_sync = number == k
        (mse_loss(model(x), y) / k).backward()
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), max_norm)
    return norm
""",
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
    Answer(
        "07.3",
        "clips each parameter by itself",
        "each-parameter",
        IMPORTS
        + """\
def clipped_window(model, micro_batches, max_norm):
    k = len(micro_batches)
    for number, (x, y) in enumerate(micro_batches, start=1):
        model.require_backward_grad_sync = number == k
        (mse_loss(model(x), y) / k).backward()
    gradients = [p.grad for p in model.parameters() if p.grad is not None]
    norm = torch.cat([g.flatten() for g in gradients]).norm()
    for g in gradients:
        g.mul_(min(1, max_norm / g.norm()))
    return norm
""",
    ),
    Answer(
        "07.3",
        "clips each number",
        "each-number",
        IMPORTS
        + """\
def clipped_window(model, micro_batches, max_norm):
    k = len(micro_batches)
    for number, (x, y) in enumerate(micro_batches, start=1):
        model.require_backward_grad_sync = number == k
        (mse_loss(model(x), y) / k).backward()
    gradients = [p.grad for p in model.parameters() if p.grad is not None]
    norm = torch.cat([g.flatten() for g in gradients]).norm()
    torch.nn.utils.clip_grad_value_(model.parameters(), max_norm)
    return norm
""",
    ),
    Answer(
        "07.3",
        "always scales to the limit",
        "scaled-up",
        IMPORTS
        + """\
def clipped_window(model, micro_batches, max_norm):
    k = len(micro_batches)
    for number, (x, y) in enumerate(micro_batches, start=1):
        model.require_backward_grad_sync = number == k
        (mse_loss(model(x), y) / k).backward()
    gradients = [p.grad for p in model.parameters() if p.grad is not None]
    norm = torch.cat([g.flatten() for g in gradients]).norm()
    for g in gradients:
        g.mul_(max_norm / norm)
    return norm
""",
    ),
    Answer(
        "07.3",
        "adds squares up over ranks",
        "length-shared",
        IMPORTS
        + """\
def clipped_window(model, micro_batches, max_norm):
    k = len(micro_batches)
    for number, (x, y) in enumerate(micro_batches, start=1):
        model.require_backward_grad_sync = number == k
        (mse_loss(model(x), y) / k).backward()
    gradients = [p.grad for p in model.parameters() if p.grad is not None]
    squares = sum(g.square().sum() for g in gradients)
    dist.all_reduce(squares)
    norm = squares.sqrt()
    for g in gradients:
        g.mul_(min(1, max_norm / norm))
    return norm
""",
    ),
    Answer(
        "07.3",
        "asks which rank's is the longest",
        "length-message",
        IMPORTS
        + """\
def clipped_window(model, micro_batches, max_norm):
    k = len(micro_batches)
    for number, (x, y) in enumerate(micro_batches, start=1):
        model.require_backward_grad_sync = number == k
        (mse_loss(model(x), y) / k).backward()
    gradients = [p.grad for p in model.parameters() if p.grad is not None]
    norm = torch.cat([g.flatten() for g in gradients]).norm()
    dist.all_reduce(norm, op=dist.ReduceOp.MAX)
    for g in gradients:
        g.mul_(min(1, max_norm / norm))
    return norm
""",
    ),
    Answer(
        "07.3",
        "adds up lengths",
        "sum-of-lengths",
        IMPORTS
        + """\
def clipped_window(model, micro_batches, max_norm):
    k = len(micro_batches)
    for number, (x, y) in enumerate(micro_batches, start=1):
        model.require_backward_grad_sync = number == k
        (mse_loss(model(x), y) / k).backward()
    gradients = [p.grad for p in model.parameters() if p.grad is not None]
    norm = sum(g.norm() for g in gradients)
    for g in gradients:
        g.mul_(min(1, max_norm / norm))
    return norm
""",
    ),
    Answer(
        "07.3",
        "forgets the root",
        "no-root",
        IMPORTS
        + """\
def clipped_window(model, micro_batches, max_norm):
    k = len(micro_batches)
    for number, (x, y) in enumerate(micro_batches, start=1):
        model.require_backward_grad_sync = number == k
        (mse_loss(model(x), y) / k).backward()
    gradients = [p.grad for p in model.parameters() if p.grad is not None]
    norm = sum(g.square().sum() for g in gradients)
    for g in gradients:
        g.mul_(min(1, max_norm / norm))
    return norm
""",
    ),
    Answer(
        "07.3",
        "returns the length afterwards",
        "length-after",
        IMPORTS
        + """\
def clipped_window(model, micro_batches, max_norm):
    k = len(micro_batches)
    for number, (x, y) in enumerate(micro_batches, start=1):
        model.require_backward_grad_sync = number == k
        (mse_loss(model(x), y) / k).backward()
    gradients = [p.grad for p in model.parameters() if p.grad is not None]
    torch.nn.utils.clip_grad_norm_(model.parameters(), max_norm)
    return torch.cat([g.flatten() for g in gradients]).norm()
""",
    ),
    Answer(
        "07.3",
        "does not divide by the window",
        "undivided",
        IMPORTS
        + """\
def clipped_window(model, micro_batches, max_norm):
    k = len(micro_batches)
    for number, (x, y) in enumerate(micro_batches, start=1):
        model.require_backward_grad_sync = number == k
        (mse_loss(model(x), y)).backward()
    return torch.nn.utils.clip_grad_norm_(model.parameters(), max_norm)
""",
    ),
    Answer(
        "07.3",
        "makes new tensors",
        "not-clipped",
        IMPORTS
        + """\
def clipped_window(model, micro_batches, max_norm):
    k = len(micro_batches)
    for number, (x, y) in enumerate(micro_batches, start=1):
        model.require_backward_grad_sync = number == k
        (mse_loss(model(x), y) / k).backward()
    gradients = [p.grad for p in model.parameters() if p.grad is not None]
    norm = torch.cat([g.flatten() for g in gradients]).norm()
    for g in gradients:
        g = g * min(1, max_norm / norm)
    return norm
""",
    ),
    Answer(
        "07.3",
        "never syncs",
        "no-sync",
        IMPORTS
        + """\
def clipped_window(model, micro_batches, max_norm):
    with model.no_sync():
        for x, y in micro_batches:
            (mse_loss(model(x), y) / len(micro_batches)).backward()
    return torch.nn.utils.clip_grad_norm_(model.parameters(), max_norm)
""",
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
    Answer(
        "07.3",
        "syncs with each micro-batch",
        "cost",
        IMPORTS
        + """\
def clipped_window(model, micro_batches, max_norm):
    for x, y in micro_batches:
        (mse_loss(model(x), y) / len(micro_batches)).backward()
    return torch.nn.utils.clip_grad_norm_(model.parameters(), max_norm)
""",
    ),
    Answer(
        "07.3",
        "returns nothing",
        "nothing",
        IMPORTS
        + """\
def clipped_window(model, micro_batches, max_norm):
    k = len(micro_batches)
    for number, (x, y) in enumerate(micro_batches, start=1):
        model.require_backward_grad_sync = number == k
        (mse_loss(model(x), y) / k).backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), max_norm)
""",
    ),
    Answer(
        "07.3",
        "forgets that some are frozen",
        "raised",
        IMPORTS
        + """\
def clipped_window(model, micro_batches, max_norm):
    k = len(micro_batches)
    for number, (x, y) in enumerate(micro_batches, start=1):
        model.require_backward_grad_sync = number == k
        (mse_loss(model(x), y) / k).backward()
    norm = torch.cat([p.grad.flatten() for p in model.parameters()]).norm()
    for p in model.parameters():
        p.grad.mul_(min(1, max_norm / norm))
    return norm
""",
    ),
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
    Answer(
        "07.3",
        "returns a length for each parameter",
        "no-length",
        IMPORTS
        + """\
def clipped_window(model, micro_batches, max_norm):
    k = len(micro_batches)
    for number, (x, y) in enumerate(micro_batches, start=1):
        model.require_backward_grad_sync = number == k
        (mse_loss(model(x), y) / k).backward()
    gradients = [p.grad for p in model.parameters() if p.grad is not None]
    lengths = [g.norm().item() for g in gradients]
    torch.nn.utils.clip_grad_norm_(model.parameters(), max_norm)
    return lengths
""",
    ),
    Answer(
        "07.3",
        "measures before the sync",
        "other-length",
        IMPORTS
        + """\
def clipped_window(model, micro_batches, max_norm):
    k, length = len(micro_batches), 0
    for number, (x, y) in enumerate(micro_batches, start=1):
        model.require_backward_grad_sync = number == k
        if number == k:
            gradients = [p.grad for p in model.parameters() if p.grad is not None]
            length = torch.cat([g.flatten() for g in gradients]).norm()
        (mse_loss(model(x), y) / k).backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), max_norm)
    return length
""",
    ),
    Answer(
        "07.3",
        "divides the limit",
        "scaled",
        IMPORTS
        + """\
def clipped_window(model, micro_batches, max_norm):
    k = len(micro_batches)
    for number, (x, y) in enumerate(micro_batches, start=1):
        model.require_backward_grad_sync = number == k
        (mse_loss(model(x), y) / k).backward()
    return torch.nn.utils.clip_grad_norm_(model.parameters(), max_norm / k)
""",
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
    Answer(
        "07.4",
        "goes by each rank's own loss",
        "alone",
        IMPORTS
        + """\
def plateau_step(schedule, total, num_samples):
    mean = total / max(num_samples, 1)
    schedule.step(mean)
    return mean
""",
    ),
    Answer(
        "07.4",
        "takes the mean of means",
        "mean-of-means",
        IMPORTS
        + """\
def plateau_step(schedule, total, num_samples):
    mean = torch.tensor(total / max(num_samples, 1), dtype=torch.float64)
    dist.all_reduce(mean)
    mean = mean.item() / dist.get_world_size()
    schedule.step(mean)
    return mean
""",
    ),
    Answer(
        "07.4",
        "goes by the sum",
        "not-a-mean",
        IMPORTS
        + """\
def plateau_step(schedule, total, num_samples):
    both = torch.tensor(total, dtype=torch.float64)
    dist.all_reduce(both)
    schedule.step(both.item())
    return both.item()
""",
    ),
    Answer(
        "07.4",
        "goes by rank 0's loss",
        "one-rank",
        IMPORTS
        + """\
def plateau_step(schedule, total, num_samples):
    mean = torch.tensor(total / max(num_samples, 1), dtype=torch.float64)
    dist.broadcast(mean, 0)
    schedule.step(mean.item())
    return mean.item()
""",
    ),
    Answer(
        "07.4",
        "sends rank 0's rate",
        "rate-only",
        IMPORTS
        + """\
def plateau_step(schedule, total, num_samples):
    mean = total / max(num_samples, 1)
    schedule.step(mean)
    rate = torch.tensor(schedule.optimizer.param_groups[0]["lr"], dtype=torch.float64)
    dist.broadcast(rate, 0)
    schedule.optimizer.param_groups[0]["lr"] = rate.item()
    return mean
""",
    ),
    Answer(
        "07.4",
        "sends two messages",
        "cost",
        IMPORTS
        + """\
def plateau_step(schedule, total, num_samples):
    total = torch.tensor(total, dtype=torch.float64)
    count = torch.tensor(num_samples, dtype=torch.float64)
    dist.all_reduce(total)
    dist.all_reduce(count)
    mean = (total / count).item()
    schedule.step(mean)
    return mean
""",
    ),
    Answer(
        "07.4",
        "gathers objects",
        "cost",
        IMPORTS
        + """\
def plateau_step(schedule, total, num_samples):
    both = [None] * dist.get_world_size()
    dist.all_gather_object(both, (total, num_samples))
    mean = sum(one for one, _ in both) / sum(one for _, one in both)
    schedule.step(mean)
    return mean
""",
    ),
    Answer(
        "07.4",
        "goes by the worst rank",
        "worst-rank",
        IMPORTS
        + """\
def plateau_step(schedule, total, num_samples):
    mean = torch.tensor(total / max(num_samples, 1), dtype=torch.float64)
    dist.all_reduce(mean, op=dist.ReduceOp.MAX)
    schedule.step(mean.item())
    return mean.item()
""",
    ),
    Answer(
        "07.4",
        "lets only rank 0 step",
        "one-steps",
        IMPORTS
        + """\
def plateau_step(schedule, total, num_samples):
    both = torch.tensor([total, num_samples], dtype=torch.float64)
    dist.all_reduce(both)
    mean = (both[0] / both[1]).item()
    if dist.get_rank() == 0:
        schedule.step(mean)
    return mean
""",
    ),
    Answer(
        "07.4",
        "forgets the step",
        "not-stepped",
        IMPORTS
        + """\
def plateau_step(schedule, total, num_samples):
    both = torch.tensor([total, num_samples], dtype=torch.float64)
    dist.all_reduce(both)
    return (both[0] / both[1]).item()
""",
    ),
    Answer(
        "07.4",
        "feeds its own",
        "fed-otherwise",
        IMPORTS
        + """\
def plateau_step(schedule, total, num_samples):
    both = torch.tensor([total, num_samples], dtype=torch.float64)
    dist.all_reduce(both)
    schedule.step(total / max(num_samples, 1))
    return (both[0] / both[1]).item()
""",
    ),
    Answer(
        "07.4",
        "leaves without samples",
        "deadlock",
        IMPORTS
        + """\
def plateau_step(schedule, total, num_samples):
    if num_samples == 0:
        return 0.0
    both = torch.tensor([total, num_samples], dtype=torch.float64)
    dist.all_reduce(both)
    mean = (both[0] / both[1]).item()
    schedule.step(mean)
    return mean
""",
    ),
    Answer(
        "07.4",
        "divides by its own number",
        "raised",
        IMPORTS
        + """\
def plateau_step(schedule, total, num_samples):
    mean = total / num_samples
    both = torch.tensor([mean * num_samples, num_samples], dtype=torch.float64)
    dist.all_reduce(both)
    mean = (both[0] / both[1]).item()
    schedule.step(mean)
    return mean
""",
    ),
    Answer(
        "07.4",
        "returns nothing",
        "nothing",
        IMPORTS
        + """\
def plateau_step(schedule, total, num_samples):
    both = torch.tensor([total, num_samples], dtype=torch.float64)
    dist.all_reduce(both)
    schedule.step((both[0] / both[1]).item())
""",
    ),
    Answer(
        "07.4",
        "lowers the rate by itself",
        "rate",
        IMPORTS
        + """\
def plateau_step(schedule, total, num_samples):
    both = torch.tensor([total, num_samples], dtype=torch.float64)
    dist.all_reduce(both)
    mean = (both[0] / both[1]).item()
    schedule.step(mean)
    schedule.optimizer.param_groups[0]["lr"] *= 0.5
    return mean
""",
    ),
    Answer(
        "07.4",
        "returns both numbers",
        "no-mean",
        IMPORTS
        + """\
def plateau_step(schedule, total, num_samples):
    both = torch.tensor([total, num_samples], dtype=torch.float64)
    dist.all_reduce(both)
    schedule.step((both[0] / both[1]).item())
    return both
""",
    ),
    Answer(
        "07.4",
        "steps twice",
        "stepped-twice",
        IMPORTS
        + """\
def plateau_step(schedule, total, num_samples):
    both = torch.tensor([total, num_samples], dtype=torch.float64)
    dist.all_reduce(both)
    mean = (both[0] / both[1]).item()
    schedule.step(mean)
    schedule.step(mean)
    return mean
""",
    ),
    Answer(
        "07.4",
        "has a place for each rank",
        "bytes",
        IMPORTS
        + """\
def plateau_step(schedule, total, num_samples):
    table = torch.zeros(dist.get_world_size(), 2, dtype=torch.float64)
    table[dist.get_rank()] = torch.tensor([total, num_samples], dtype=torch.float64)
    dist.all_reduce(table)
    mean = (table[:, 0].sum() / table[:, 1].sum()).item()
    schedule.step(mean)
    return mean
""",
    ),
    Answer(
        "07.4",
        "divides by the ranks too",
        "values",
        IMPORTS
        + """\
def plateau_step(schedule, total, num_samples):
    both = torch.tensor([total, num_samples], dtype=torch.float64)
    dist.all_reduce(both)
    mean = (both[0] / both[1]).item() / dist.get_world_size()
    schedule.step(mean)
    return mean
""",
    ),
    Answer(
        "07.4",
        "gathers",
        None,
        IMPORTS
        + """\
def plateau_step(schedule, total, num_samples):
    own = torch.tensor([total, num_samples], dtype=torch.float64)
    everyone = [torch.empty_like(own) for _ in range(dist.get_world_size())]
    dist.all_gather(everyone, own)
    mean = sum(one[0] for one in everyone) / sum(one[1] for one in everyone)
    schedule.step(mean.item())
    return mean
""",
    ),
    Answer(
        "07.4",
        "uses the package",
        None,
        IMPORTS
        + """\
def plateau_step(schedule, total, num_samples):
    from ddp_lessons.accumulation import global_mean
    mean = global_mean(total, num_samples)
    schedule.step(mean)
    return mean
""",
    ),
    Answer(
        "07.4",
        "counts in float32",
        None,
        IMPORTS
        + """\
def plateau_step(schedule, total, num_samples):
    both = torch.tensor([total, num_samples])
    dist.all_reduce(both)
    total, num_samples = both.tolist()
    schedule.step(total / num_samples)
    return total / num_samples
""",
    ),
    Answer(
        "07.1",
        "puts the model into train mode",
        "mode",
        """\
import contextlib

from torch.nn.functional import mse_loss

def accumulate(model, micro_batches):
    model.train()
    k = len(micro_batches)
    for number, (inputs, targets) in enumerate(micro_batches, start=1):
        with contextlib.nullcontext() if number == k else model.no_sync():
            (mse_loss(model(inputs), targets) / k).backward()
""",
    ),
    Answer(
        "07.4",
        "feeds four digits",
        "fed-otherwise",
        """\
import torch
import torch.distributed as dist
from ddp_lessons.process_group import rank_device

def plateau_step(schedule, total, num_samples):
    sums = torch.tensor([total, num_samples], dtype=torch.float64, device=rank_device())
    dist.all_reduce(sums)
    mean = (sums[0] / sums[1]).item()
    schedule.step(round(mean, 4))
    return mean
""",
    ),
]
