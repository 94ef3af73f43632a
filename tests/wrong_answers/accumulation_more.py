"""
More answers to exercise 07: what is left behind, and mistakes that look like another.
"""

from bank import Answer, changing

from wrong_answers.accumulation import IMPORTS

ACCUMULATE = """\
def accumulate(model, micro_batches):
    k = len(micro_batches)
    for number, (x, y) in enumerate(micro_batches, start=1):
        model.require_backward_grad_sync = number == k
        loss = mse_loss(model(x), y) / k
        loss.backward()
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
FIRST = {  # the line that a task begins with
    "07.1": "    k = len(micro_batches)\n",
    "07.2": "    for start in",
    "07.3": "    k = len(micro_batches)\n",
}
LAST = {  # the one before which all gradients are there
    "07.2": "        optimizer.step()\n",
    "07.3": "    gradients = [",
}
LOOP = "    for p in model.parameters():\n"
TRAINED = "    for p in filter(lambda p: p.requires_grad, model.parameters()):\n"
ZEROS = LOOP + "        if p.grad is None: p.grad = torch.zeros_like(p)\n"
SCALE = "        for g in gradients:\n            g.mul_(max_norm / norm)\n"
ZERO = "        optimizer.zero_grad()\n"
OFF = "    model.require_backward_grad_sync = False\n"
STEP = "    torch.optim.SGD(model.parameters(), lr=0.1).step()\n"


_changed = changing({number: IMPORTS + source for number, source in SOURCES.items()})


def _at_first(number, what, mistake, lines):
    return _changed(number, what, mistake, (FIRST[number], lines + FIRST[number]))


def _at_end(number, what, mistake, lines, *pairs):
    """
    Put lines where all gradients are there; they are indented as in 07.1.
    """
    last = LAST.get(number)
    if last is None:
        end = "        loss.backward()\n"
        return _changed(number, what, mistake, (end, end + lines), *pairs)
    if number == "07.2":
        lines = "".join(f"    {line}\n" for line in lines.splitlines())
    return _changed(number, what, mistake, (last, lines + last), *pairs)


BY_HAND = ("07.1", "07.2", "07.3")
BY_FOUR = """\
    model.require_backward_grad_sync = True
    both = [p.grad for p in model.parameters() if p.grad is not None]
    flat = torch.cat([one.flatten() for one in both])
    dist.all_reduce(flat)
    for one, part in zip(both, flat.split([one.numel() for one in both])):
        one.copy_(part.view_as(one) / 4)
"""
HALVES = "        p.grad.copy_(p.grad.bfloat16())\n"

ANSWERS = [
    # what is left behind
    *(
        _at_first(number, "leaves the model in eval mode", "mode", "    model.eval()\n")
        for number in BY_HAND
    ),
    *(
        _at_first(number, "thaws what is frozen", "thawed", "    model.requires_grad_(True)\n")
        for number in BY_HAND
    ),
    *(
        _at_end(number, "gives the frozen parameter zeros", "frozen-gradient", ZEROS)
        for number in BY_HAND
    ),
    *(
        _changed(
            number,
            "keeps each graph",
            "graph-kept",
            ("loss.backward()", "loss.backward(retain_graph=True)"),
        )
        for number in BY_HAND
    ),
    *(
        _changed(
            number,
            "loses a dimension",
            "shapes",
            ("mse_loss(model(x), y)", "mse_loss(model(x)[:, 0], y)"),
        )
        for number in BY_HAND
    ),
    *(
        _at_end(
            number,
            "tells the others its loss",
            mistake,
            "    one = loss.detach().clone()\n    dist.all_reduce(one)\n",
        )
        for number, mistake in (
            ("07.1", "own-message"),
            ("07.2", "own-message"),
            ("07.3", "length-message"),
        )
    ),
    _changed(
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
    _changed("07.2", "leaves the sync off", "left-off", (ZERO, ZERO + OFF)),
    _changed(
        "07.3", "leaves the sync off", "left-off", ("    return norm", OFF + "    return norm")
    ),
    *(
        _changed(
            number,
            "divides in hooks that stay",
            "hooks",
            (FIRST[number], FIRST[number] + TRAINED + "        p.register_hook(lambda g: g / k)\n"),
            (" / k\n", "\n"),
        )
        for number in ("07.1", "07.3")
    ),
    _changed(
        "07.1",
        "divides in a communication hook that stays",
        "raised",
        (
            FIRST["07.1"],
            FIRST["07.1"]
            + """\
    def divide(_, bucket):
        sum_of_all = dist.all_reduce(bucket.buffer() / k / dist.get_world_size(), async_op=True)
        return sum_of_all.get_future().then(lambda future: future.value()[0])
    model.register_comm_hook(None, divide)
""",
        ),
        (" / k\n        loss", "\n        loss"),
    ),
    _changed(
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
    *(
        _at_first(
            number,
            "leaves hooks that only look",
            "hooks",
            TRAINED + "        p.register_post_accumulate_grad_hook(lambda p: None)\n",
        )
        for number in ("07.1", "07.3")
    ),
    *(
        _at_end(number, "knows of 4 ranks", "fixed-size", BY_FOUR, ("sync = number", "sync = 0"))
        for number in BY_HAND
    ),
    *(
        _at_end(number, "rounds to bfloat16", "digits", TRAINED + HALVES)
        for number in ("07.1", "07.3")
    ),
    _changed(
        "07.2",
        "has shares in float32",
        "digits",
        ("len(y) / total", "torch.tensor(len(y) / total)"),
    ),
    _changed(
        "07.3", "rounds the length", "digits", ("return norm", "return round(norm.item(), 1)")
    ),
    _changed("07.3", "measures in float32", "digits", (".norm()", ".float().norm()")),
    Answer(
        "07.1",
        "adds up on the model from call to call",
        "again",
        IMPORTS
        + """\
def accumulate(model, micro_batches):
    trained = [p for p in model.parameters() if p.requires_grad]
    share, total = 1 / len(micro_batches) / dist.get_world_size(), vars(model).get("total", 0)
    for x, y in micro_batches:
        parts = torch.autograd.grad(mse_loss(model.module(x), y) * share, trained)
        total = total + torch.cat([part.flatten() for part in parts])
    dist.all_reduce(total)
    model.total = total
    for p, part in zip(trained, total.split([p.numel() for p in trained])):
        p.grad = part.view_as(p).clone()
""",
    ),
    _changed(
        "07.1",
        "divides by the 3 of the first call",
        "again",
        ("/ k\n        loss", "/ 3\n        loss"),
    ),
    _changed(
        "07.3",
        "asks the square whether it is too long",
        "scaled-up",
        ("if norm >", "if norm * norm >"),
    ),
    _changed(
        "07.3",
        "remembers the length",
        "again",
        ("return norm", "return vars(model).setdefault('norm', norm.item())"),
    ),
    _changed(
        "07.1",
        "remembers how many there were",
        "again",
        (
            FIRST["07.1"],
            "    k = vars(model).setdefault('num_parts', len(micro_batches))\n"
            "    micro_batches = list(micro_batches)\n",
        ),
        ("number == k", "number == len(micro_batches)"),
    ),
    _changed(
        "07.1",
        "makes a step of its own",
        "weights",
        ("        loss.backward()\n", "        loss.backward()\n" + STEP),
    ),
    _changed(
        "07.3", "makes a step of its own", "weights", ("    return norm", STEP + "    return norm")
    ),
    # 07.1
    _changed(
        "07.1",
        "takes the number of ranks for k",
        "scaled",
        ("mse_loss(model(x), y) / k", "mse_loss(model(x), y) / 4"),
    ),
    _changed(
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
        "takes two at a time",
        "memory",
        IMPORTS
        + """\
def accumulate(model, micro_batches):
    k = len(micro_batches)
    pairs = [micro_batches[i : i + 2] for i in range(0, k, 2)]
    for pair in pairs:
        model.require_backward_grad_sync = pair is pairs[-1]
        x = torch.cat([x for x, _ in pair])
        y = torch.cat([y for _, y in pair])
        (mse_loss(model(x), y) * len(pair) / k).backward()
""",
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
    # 07.2
    _changed(
        "07.2",
        "empties between windows only",
        "not-zeroed",
        ("        window =", "        if start: optimizer.zero_grad()\n        window ="),
        ("        optimizer.step()\n        optimizer.zero_grad()\n", "        optimizer.step()\n"),
    ),
    _changed(
        "07.2",
        "lowers the rate for the short window, and for good",
        "optimizer",
        (
            LAST["07.2"],
            "        for group in optimizer.param_groups:\n"
            "            group['lr'] *= len(window) / k\n" + LAST["07.2"],
        ),
    ),
    _changed(
        "07.2",
        "lowers the rate for the short window only",
        "optimizer",
        (
            LAST["07.2"],
            "        group = optimizer.param_groups[0]\n"
            "        rate, group['lr'] = group['lr'], group['lr'] * len(window) / k\n"
            + LAST["07.2"]
            + "        group['lr'] = rate\n",
        ),
    ),
    _changed(
        "07.2",
        "forgets the momentum",
        "optimizer",
        (LAST["07.2"], "        optimizer.state.clear()\n" + LAST["07.2"]),
    ),
    _changed(
        "07.2",
        "sets a weight decay",
        "optimizer",
        (FIRST["07.2"], "    optimizer.param_groups[0]['weight_decay'] = 0.1\n" + FIRST["07.2"]),
    ),
    _changed(
        "07.2",
        "has an optimizer of its own",
        "no-step",
        (
            FIRST["07.2"],
            "    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)\n"
            + FIRST["07.2"],
        ),
    ),
    _changed(
        "07.2",
        "takes batches out of the list",
        "input-changed",
        ("for start in range(0, len(batches), k):", "while batches:"),
        (
            "batches[start : start + k]",
            "[batches.pop(0) for _ in range(min(k, len(batches)))]",
        ),
    ),
    _changed(
        "07.2",
        "takes the short window first",
        "other-batches",
        (
            "    for start in range(0, len(batches), k):\n"
            "        window = batches[start : start + k]\n",
            "    first = len(batches) % k or k\n"
            "    for stop in range(first, len(batches) + 1, k):\n"
            "        window = batches[max(stop - k, 0) : stop]\n",
        ),
    ),
    _changed(
        "07.2",
        "deals batches out to windows",
        "other-batches",
        ("batches[start : start + k]", "batches[start // k :: -(-len(batches) // k)]"),
    ),
    _changed(
        "07.2",
        "asks the ranks how many samples there are",
        "own-message",
        (
            "        for number",
            "        total = torch.tensor(float(total))\n"
            "        dist.all_reduce(total)\n"
            "        total /= dist.get_world_size()\n"
            "        for number",
        ),
    ),
    _changed(
        "07.2",
        "weighs all batches like the first",
        "mean-of-means",
        ("* len(y)", "* len(window[0][1])"),
    ),
    _changed(
        "07.2",
        "looks at the gradient of each parameter",
        "raised",
        (
            LAST["07.2"],
            "        assert all(p.grad.norm() > 0 for p in model.parameters())\n" + LAST["07.2"],
        ),
    ),
    _changed(
        "07.2",
        "counts the last batch twice",
        "values",
        ("* len(y) / total", "* len(y) * (1 + (number == len(window))) / total"),
    ),
    _changed(
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
    # 07.3
    _changed(
        "07.3",
        "divides a float by the length",
        "raised",
        (
            "    if norm > max_norm:\n",
            "    norm = norm.item()\n    scale = min(1.0, max_norm / norm)\n    if True:\n",
        ),
        ("max_norm / norm)\n    return", "scale)\n    return"),
    ),
    _changed(
        "07.3",
        "makes a unit vector first",
        "zero-length",
        (
            "    if norm > max_norm:\n" + SCALE,
            "    for g in gradients:\n        g.copy_(g / norm * min(norm, max_norm))\n",
        ),
    ),
    _changed(
        "07.3",
        "multiplies the limit by k",
        "scaled",
        ("if norm > max_norm", "max_norm *= k\n    if norm > max_norm"),
    ),
    _changed(
        "07.3", "adds 1 to the length", "scaled", ("max_norm / norm)", "max_norm / (norm + 1))")
    ),
    _changed(
        "07.3", "takes the largest number for the length", "scaled", (".norm()", ".abs().max()")
    ),
    _changed("07.3", "adds up absolute values", "scaled", (".norm()", ".norm(1)")),
    _changed(
        "07.3",
        "takes the root of the mean square",
        "scaled",
        (".norm()", ".square().mean().sqrt()"),
    ),
    _changed(
        "07.3",
        "takes the length of the first parameter",
        "scaled",
        ("torch.cat([g.flatten() for g in gradients]).norm()", "gradients[0].norm()"),
    ),
    _changed(
        "07.3",
        "returns the factor",
        "other-length",
        ("return norm", "return min(1.0, max_norm / norm)"),
    ),
    _changed(
        "07.3",
        "returns 1 for a gradient of zeros",
        "other-length",
        ("return norm", "return norm if norm > 0 else norm + 1"),
    ),
    _changed(
        "07.3",
        "scales the weights",
        "not-clipped",
        (SCALE, "        for p in model.parameters():\n            p.data.mul_(max_norm / norm)\n"),
    ),
    _changed(
        "07.3",
        "adds a weight decay",
        "values",
        ("    gradients = [", TRAINED + "        p.grad += 0.1 * p.detach()\n    gradients = ["),
    ),
    _changed(
        "07.3",
        "takes micro-batches out of the list",
        "input-changed",
        ("    return norm", "    micro_batches.clear()\n    return norm"),
    ),
    _changed(
        "07.3",
        "puts new tensors into .grad, whatever the length",
        None,
        (
            "    if norm > max_norm:\n" + SCALE,
            "    factor = torch.clamp(max_norm / (norm + 1e-6), max=1.0)\n"
            "    for p in model.parameters():\n"
            "        p.grad = None if p.grad is None else p.grad * factor\n",
        ),
    ),
    # 07.4
    _changed("07.4", "sends whole numbers", "rounded", ("[total,", "[int(total),")),
    _changed(
        "07.4",
        "rounds the mean",
        "rounded",
        ("(both[0] / both[1]).item()", "round((both[0] / both[1]).item(), 1)"),
    ),
    _changed(
        "07.4",
        "divides down to a whole number",
        "rounded",
        ("both[0] / both[1]", "both[0] // both[1]"),
    ),
    _changed("07.4", "sends bfloat16", "rounded", ("torch.float64", "torch.bfloat16")),
    _changed(
        "07.4",
        "makes a group at each call",
        "store",
        ("all_reduce(both", "all_reduce(both, group=dist.new_group()"),
    ),
    _changed(
        "07.4",
        "counts one sample where there is none",
        "not-a-mean",
        ("total, num_samples]", "total, max(num_samples, 1)]"),
    ),
    _changed(
        "07.4",
        "feeds only what is better",
        "not-stepped",
        ("    schedule.step", "    if mean < schedule.best: schedule.step"),
    ),
    _changed(
        "07.4",
        "has less patience",
        "rate",
        ("    schedule.step", "    schedule.patience = 0\n    schedule.step"),
    ),
    _changed("07.4", "waits for nothing", "unwaited", ("(both)", "(both, async_op=True)")),
    _changed(
        "07.4",
        "asks for the number of samples once",
        "old-count",
        (
            "    both =",
            "    num_samples = vars(schedule).setdefault('num_samples', num_samples)\n    both =",
        ),
    ),
    _changed(
        "07.4",
        "returns its own",
        "fed-otherwise",
        ("return mean", "return total / max(num_samples, 1)"),
    ),
    _changed(
        "07.4",
        "sets a threshold",
        "rate",
        ("    schedule.step", "    schedule.threshold = 0.5\n    schedule.step"),
    ),
    _changed(
        "07.4",
        "adds up from call to call",
        "kept",
        (
            "    mean =",
            "    both += vars(schedule).get('all', 0)\n    schedule.all = both\n    mean =",
        ),
    ),
    _changed("07.4", "reduces to rank 0", "not-everywhere", ("all_reduce(both", "reduce(both, 0")),
    _changed(
        "07.4",
        "returns a tensor of one number",
        None,
        ("mean = (both[0] / both[1]).item()", "mean = both[0] / both[1]"),
    ),
    Answer(
        "07.4",
        "sends a complex number",
        None,
        IMPORTS
        + """\
def plateau_step(schedule, total, num_samples):
    both = torch.view_as_real(torch.tensor(complex(total, num_samples), dtype=torch.complex128))
    dist.all_reduce(both)
    mean = both[0].item() / both[1].item()
    schedule.step(torch.tensor(mean, dtype=torch.float64))
    return mean
""",
    ),
    # sizes that are hit seldom
    _changed(
        "07.2",
        "loses a batch that is left over alone",
        "lost",
        ("range(0, len(batches), k)", "range(0, len(batches) - 1, k)"),
    ),
    _at_first(
        "07.2",
        "does nothing without a full window",
        "no-step",
        "    if len(batches) < k: return\n",
    ),
    _changed(
        "07.2",
        "weighs by samples in a short window only",
        "mean-of-means",
        ("* len(y) / total", "* (1 / k if len(window) == k else len(y) / total)"),
    ),
    _changed(
        "07.3",
        "divides one micro-batch by two",
        "other-length",
        ("    k = len(micro_batches)\n    for", "    k = max(len(micro_batches), 2)\n    for"),
        ("number == k", "number == len(micro_batches)"),
    ),
    _changed(
        "07.4",
        "leaves out a rank without a loss",
        "worst-rank",
        ("[total, num_samples]", "[total, num_samples if total else 0]"),
    ),
]
