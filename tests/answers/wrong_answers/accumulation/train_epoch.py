"""
Answers to task 07.2.
"""

from bank import Answer

from wrong_answers.accumulation.sources import IMPORTS, LAST, OFF, altered, at_first

ZERO = "        optimizer.zero_grad()\n"

ANSWERS = [
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
    altered("07.2", "does not divide", "undivided", (" * len(y) / total", "")),
    altered(
        "07.2",
        "syncs with every batch",
        "cost",
        ("            model.require_backward_grad_sync = number == len(window)\n", ""),
    ),
    altered(
        "07.2",
        "empties before the step",
        "zeroed-first",
        (
            "        optimizer.step()\n        optimizer.zero_grad()\n",
            "        optimizer.zero_grad()\n        optimizer.step()\n",
        ),
    ),
    altered(
        "07.2",
        "empties within the window",
        "zeroed",
        (
            "            loss.backward()\n",
            "            optimizer.zero_grad()\n            loss.backward()\n",
        ),
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
    altered(
        "07.2",
        "lets only rank 0 step for what is left over",
        "not-all-step",
        (
            "        optimizer.step()\n",
            "        if len(window) == k or dist.get_rank() == 0:\n            optimizer.step()\n",
        ),
    ),
    altered(
        "07.2",
        "has the forward outside of no_sync",
        "forward-outside",
        ("sync = number == len(window)", "sync = True"),
        (
            "            loss.backward()\n",
            "            model.require_backward_grad_sync = number == len(window)\n"
            "            loss.backward()\n",
        ),
    ),
    altered(
        "07.2",
        "divides by the ranks too",
        "divided-twice",
        ("len(y) / total", "len(y) / total / dist.get_world_size()"),
    ),
    altered(
        "07.2",
        "takes one batch less",
        "num-steps",
        ("    for start in", "    k = k - 1\n    for start in"),
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
    altered("07.2", "leaves the sync off", "left-off", (ZERO, ZERO + OFF)),
    altered(
        "07.2",
        "divides in hooks that stay",
        "scaled",
        (
            "        for number",
            "        for p in list(model.parameters())[1:]:\n"
            "            p.register_hook(lambda g, total=total: g / total)\n"
            "        for number",
        ),
        (" / total\n            loss", "\n            loss"),
    ),
    altered(
        "07.2",
        "has shares in float32",
        "digits",
        ("len(y) / total", "torch.tensor(len(y) / total)"),
    ),
    altered(
        "07.2",
        "empties between windows only",
        "not-zeroed",
        ("        window =", "        if start: optimizer.zero_grad()\n        window ="),
        ("        optimizer.step()\n        optimizer.zero_grad()\n", "        optimizer.step()\n"),
    ),
    altered(
        "07.2",
        "forgets the momentum",
        "optimizer",
        (LAST["07.2"], "        optimizer.state.clear()\n" + LAST["07.2"]),
    ),
    altered(
        "07.2",
        "takes batches out of the list",
        "input-changed",
        ("for start in range(0, len(batches), k):", "while batches:"),
        (
            "batches[start : start + k]",
            "[batches.pop(0) for _ in range(min(k, len(batches)))]",
        ),
    ),
    altered(
        "07.2",
        "deals batches out to windows",
        "other-batches",
        ("batches[start : start + k]", "batches[start // k :: -(-len(batches) // k)]"),
    ),
    altered(
        "07.2",
        "weighs all batches like the first",
        "mean-of-means",
        ("* len(y)", "* len(window[0][1])"),
    ),
    altered(
        "07.2",
        "looks at the gradient of each parameter",
        "raised",
        (
            LAST["07.2"],
            "        assert all(p.grad.norm() > 0 for p in model.parameters())\n" + LAST["07.2"],
        ),
    ),
    altered(
        "07.2",
        "counts the last batch twice",
        "values",
        ("* len(y) / total", "* len(y) * (1 + (number == len(window))) / total"),
    ),
    altered(
        "07.2",
        "empties before each window, and keeps zeros",
        None,
        ("        window =", "        optimizer.zero_grad(set_to_none=False)\n        window ="),
        ("        optimizer.step()\n        optimizer.zero_grad()\n", "        optimizer.step()\n"),
    ),
    Answer(
        "07.2",
        "counts batches on from epoch to epoch",
        "runs-on",
        "num_batches = 0\n"
        + IMPORTS
        + """\
def train_epoch(model, optimizer, batches, k):
    global num_batches
    for x, y in batches:
        num_batches += 1
        model.require_backward_grad_sync = num_batches % k == 0
        (mse_loss(model(x), y) / k).backward()
        if num_batches % k == 0:
            optimizer.step()
            optimizer.zero_grad()
""",
    ),
    # sizes that are hit seldom
    altered(
        "07.2",
        "loses a batch that is left over alone",
        "lost",
        ("range(0, len(batches), k)", "range(0, len(batches) - 1, k)"),
    ),
    at_first(
        "07.2",
        "does nothing without a full window",
        "no-step",
        "    if len(batches) < k: return\n",
    ),
    altered(
        "07.2",
        "weighs in hooks that stay",
        "hooks-stay",
        (
            "    for start in",
            "    weight = [1.0]\n"
            "    for p in filter(lambda p: p.requires_grad, model.parameters()):\n"
            "        p.register_hook(lambda g: g * weight[0])\n    for start in",
        ),
        (
            "            loss = mse_loss(model(x), y) * len(y) / total\n",
            "            weight[0] = len(y) / total\n            loss = mse_loss(model(x), y)\n",
        ),
    ),
]
