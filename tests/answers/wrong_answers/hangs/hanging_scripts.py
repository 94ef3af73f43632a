"""
Answers to task 10.4.
"""

from bank import Answer, changed

_IMPORTS = """\
import torch
import torch.distributed as dist


"""
_RIGHT = {
    1: """\
def script_1(losses):
    logged = []
    for loss in losses:
        dist.reduce(loss, dst=0)
        logged.append(loss.item())
    return logged


""",
    2: """\
def script_2(batches):
    total = sum(batches, torch.zeros(3))
    dist.all_reduce(total)
    return total


""",
    3: """\
def script_3(weights, losses, limit):
    num_steps = 0
    for loss in losses:
        dist.all_reduce(weights)
        num_steps += 1
        dist.all_reduce(loss)
        if loss.item() <= limit:
            break
    return num_steps


""",
    4: """\
def script_4(part):
    parts = [torch.zeros(2) for _ in range(dist.get_world_size())]
    parts[dist.get_rank()] = part
    for owner, tensor in enumerate(parts):
        dist.broadcast(tensor, src=owner)
    return parts


""",
}
_END = "def hanging_scripts():\n    return script_1, script_2, script_3, script_4\n"


def _scripts(**new):
    bodies = {**_RIGHT, **{int(name[-1]): body for name, body in new.items()}}
    return _IMPORTS + "".join(f"{bodies[n].rstrip()}\n\n\n" for n in sorted(bodies)) + _END


def _answer(name, mistake, **new):
    return Answer("10.4", name, mistake, _scripts(**new))


def _altered(name, mistake, number, *pairs):
    return _answer(name, mistake, **{f"script_{number}": changed(_RIGHT[number], *pairs)})


ANSWERS = [
    _altered(
        "still reduces on rank 0 alone",
        "deadlock",
        1,
        (
            "        dist.reduce(loss, dst=0)",
            "        if dist.get_rank() == 0:\n            dist.reduce(loss, dst=0)",
        ),
    ),
    _altered("drops the reduce", "alone", 1, ("        dist.reduce(loss, dst=0)\n", "")),
    _altered(
        "reduces to the last rank",
        "other-root",
        1,
        ("dst=0", "dst=dist.get_world_size() - 1"),
    ),
    _answer(
        "cuts at the fewest batches",
        "lost-batches",
        script_2="""\
def script_2(batches):
    fewest = torch.tensor(len(batches))
    dist.all_reduce(fewest, op=dist.ReduceOp.MIN)
    total = sum(batches[: fewest.item()], torch.zeros(3))
    dist.all_reduce(total)
    return total
""",
    ),
    _answer(
        "cannot do with a rank that has none",
        "raised",
        script_2="""\
def script_2(batches):
    total = torch.stack(batches).sum(0)
    dist.all_reduce(total)
    return total
""",
    ),
    _altered("returns a number", "nothing", 2, ("return total", "return total.sum().item()")),
    _altered(
        "compares the sum of all with a part of the limit",
        "other-rule",
        3,
        ("<= limit", "<= limit / dist.get_world_size()"),
    ),
    _altered(
        "does not count the last step",
        "values",
        3,
        ("        num_steps += 1\n", ""),
        ("            break\n", "            break\n        num_steps += 1\n"),
    ),
    _altered("forgets the weights", "weights", 3, ("        dist.all_reduce(weights)\n", "")),
    _altered(
        "begins with its own in the list",
        "rank-order",
        4,
        ("return parts", "return parts[dist.get_rank():] + parts[:dist.get_rank()]"),
    ),
    Answer(
        "10.4", "returns three scripts", "not-four", changed(_scripts(), (", script_4\n", "\n"))
    ),
    _answer(
        "has not begun with script 3",
        "unfinished",
        script_3="""\
def script_3(weights, losses, limit):
    raise NotImplementedError("Task 10.4 is still blank")
""",
    ),
    _answer(
        "gathers losses at once, pads batches, lets rank 0 decide, gathers parts",
        None,
        script_1="""\
def script_1(losses):
    sums = torch.cat(losses)
    dist.all_reduce(sums)
    return sums.tolist()
""",
        script_2="""\
def script_2(batches):
    most = torch.tensor(len(batches))
    dist.all_reduce(most, op=dist.ReduceOp.MAX)
    total = torch.zeros(3)
    for turn in range(most.item()):
        batch = batches[turn] if turn < len(batches) else torch.zeros(3)
        dist.all_reduce(batch)
        total += batch
    return total
""",
        script_3="""\
def script_3(weights, losses, limit):
    for num_steps, loss in enumerate(losses, start=1):
        dist.all_reduce(weights)
        dist.reduce(loss, 0)
        verdict = (loss <= limit).float()
        dist.broadcast(verdict, 0)
        if verdict:
            return num_steps
""",
        script_4="""\
def script_4(part):
    parts = [torch.empty(2) for _ in range(dist.get_world_size())]
    dist.all_gather(parts, part)
    return tuple(parts)
""",
    ),
    _answer(
        "knows all sums before it begins",
        None,
        script_3="""\
def script_3(weights, losses, limit):
    sums = torch.cat(losses)
    dist.all_reduce(sums)
    num_steps = 1 + (sums > limit).int().argmin().item()
    for _ in range(num_steps):
        dist.all_reduce(weights)
    return num_steps
""",
    ),
]
