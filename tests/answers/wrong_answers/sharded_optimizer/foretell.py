"""
Answers to task 13.4.
"""

from bank import Answer

from wrong_answers.sharded_optimizer.sources import altered

_CUT = "sum((n + world_size - 1) // world_size for n in sizes)"

ANSWERS = [
    altered(
        "13.4",
        "reduces all gradients everywhere at stage 1",
        "all-reduced",
        ("4 * (C + world_size * C) if", "4 * ((N if stage == 1 else C) + world_size * C) if"),
    ),
    altered(
        "13.4",
        "rounds to the nearest",
        "floor",
        ("(n + world_size - 1) // world_size", "round(n / world_size)"),
    ),
    altered("13.4", "counts numbers", "numbers", ("4 * ", "1 * ")),
    altered(
        "13.4",
        "cuts the parameters, too",
        "parameters-cut",
        ("parameters = 4 * N", "parameters = 4 * (C if stage else N)"),
    ),
    altered(
        "13.4",
        "keeps all gradients at stage 2",
        "gradients-whole",
        ("(C if stage == 2 else N)", "N"),
    ),
    altered("13.4", "cuts gradients at stage 1", "gradients-kept", ("stage == 2", "stage >= 1")),
    altered(
        "13.4",
        "cuts the state at stage 2 only",
        "state-whole",
        ("num_states * (C if stage >= 1 else N)", "num_states * (C if stage == 2 else N)"),
    ),
    altered(
        "13.4",
        "cuts the state at stage 0",
        "state-kept",
        ("num_states * (C if stage >= 1 else N)", "num_states * C"),
    ),
    altered("13.4", "takes every optimizer for Adam", "state-of-adam", ("4 * num_states", "4 * 2")),
    altered("13.4", "cuts the whole at once", "together", (_CUT, "-(-N // world_size)")),
    altered("13.4", "does not round", "fraction", (_CUT, "N / world_size")),
    altered("13.4", "sends no padding", "padding", ("(C + world_size * C)", "(C + N)")),
    altered(
        "13.4", "forgets the reduce-scatter", "one-call", ("(C + world_size * C)", "world_size * C")
    ),
    altered("13.4", "counts an all-reduce twice", "sent", ("else 4 * N\n", "else 8 * N\n")),
    altered(
        "13.4",
        "asks how many ranks run",
        "asked",
        (
            "    N =",
            "    import torch.distributed as dist\n    world_size = dist.get_world_size()\n    N =",
        ),
    ),
    altered(
        "13.4",
        "divides by the state",
        "raised",
        ("    return", "    share = state / num_states\n    return"),
    ),
    altered(
        "13.4",
        "returns one number",
        "no-numbers",
        ("[parameters, gradients, state, messages]", "parameters + gradients + state + messages"),
    ),
    altered(
        "13.4",
        "asks the others",
        "forbidden",
        (
            "    N =",
            "    import torch, torch.distributed as dist\n"
            "    dist.all_reduce(torch.ones(1))\n    N =",
        ),
    ),
    altered(
        "13.4",
        "counts something more",
        "values",
        ("(C + world_size * C)", "(C + world_size * C + 7)"),
    ),
    Answer(
        "13.4",
        "cuts real tensors",
        None,
        """\
def foretell(sizes, num_states, stage, world_size):
    first = sum(len(range(0, size, world_size)) for size in sizes) * 4.0
    table = {0: (1, 1, 1), 1: (1, 1, 0), 2: (1, 0, 0)}[stage]
    whole = 4.0 * sum(sizes)
    kinds = [whole if is_whole else first for is_whole in table]
    kinds[2] *= num_states
    return (*kinds, whole if stage == 0 else (1 + world_size) * first)
""",
    ),
    altered(
        "13.4",
        "returns a tensor",
        None,
        ("    return", "    import torch\n    return torch.tensor("),
        ("messages]", "messages], dtype=torch.int64)"),
    ),
    Answer(
        "13.4",
        "counts the steps, too",
        "steps",
        """\
import math


def foretell(sizes, num_states, stage, world_size):
    whole = sum(sizes)
    part = sum(math.ceil(size / world_size) for size in sizes)
    padded = part * world_size
    parameters = whole
    gradients = part if stage == 2 else whole
    state = num_states * (whole if stage == 0 else part) + len(sizes)
    messages = whole if stage == 0 else part + padded
    return 4 * parameters, 4 * gradients, 4 * state, 4 * messages
""",
    ),
]
