"""
More answers to exercise 06: how a hook waits, whose debts are whose, and what decides on a branch.
"""

from bank import Answer, changed

from wrong_answers.ddp import (
    _ADD,
    _BACKWARD,
    _FLAGS,
    _LISTS,
    _REACHED,
    _hook,
    _unused,
)

_AT_ONCE = "return work.get_future().then(lambda _: buffer.copy_(message))"


def _waiting(how):
    return _hook(end=f"{how}\n    {_AT_ONCE}")


_HOOKS = [
    Answer(
        "06.1",
        "waits in the hook for all buckets but the last",
        "waits",
        _waiting("if not bucket.is_last():\n        work.wait()"),
    ),
    Answer(
        "06.1",
        "waits in the hook for the first bucket only",
        "waits",
        _waiting("if bucket.index() == 0:\n        work.wait()"),
    ),
    Answer(
        "06.1",
        "asks again and again whether it is through",
        "waits",
        _waiting("while not work.is_completed():\n        pass"),
    ),
    Answer(
        "06.1",
        "asks the future again and again",
        "waits",
        _waiting("while not work.get_future().done():\n        pass"),
    ),
    Answer(
        "06.1",
        "keeps debts by a parameter's length",
        "same-key",
        _hook(
            owed="residuals.get(parameter.numel(), 0)",
            keep="residuals.update(zip(sizes, rest.split(sizes)))",
        ),
    ),
    Answer(
        "06.1",
        "keeps debts by a parameter's shape",
        "same-key",
        _hook(
            owed="residuals.get(parameter.shape, 0)",
            keep="residuals.update(zip([p.shape for p in parameters], rest.split(sizes)))",
        ),
    ),
    Answer("06.1", "knows of 4 ranks", "fixed-size", _hook(share="bucket.buffer() / 4")),
    Answer(
        "06.1",
        "divides what it owes once more",
        "divided-debt",
        _hook(rest="(target - message) / dist.get_world_size()"),
    ),
    Answer(
        "06.1",
        "counts what it owes when all messages are added up",
        "after-sum",
        _hook(
            keep="pass",
            end="""\
def end(_):
        residuals.update(zip(parameters, (target - message).split(sizes)))
        return buffer.copy_(message)
    return work.get_future().then(end)""",
        ),
    ),
    Answer(
        "06.1",
        "drops small debts",
        "small-debts",
        _hook(rest="target - message\n    rest[rest.abs() < 1e-3] = 0"),
    ),
    Answer("06.1", "keeps debts in float16", "overflow", _hook(rest="(target - message).half()")),
    Answer(
        "06.1",
        "adds debts to the rounded message",
        "after-rounding",
        _hook(
            owed="0",
            rest="target - message\n"
            "    for parameter, part in zip(parameters, message.split(sizes)):\n"
            "        part += residuals.get(parameter, 0)",
        ),
    ),
    Answer(
        "06.1",
        "divides the sum in half precision",
        "half-average",
        _hook(
            share="bucket.buffer().clone()",
            end="return work.get_future().then("
            "lambda done: buffer.copy_(done.value()[0] / dist.get_world_size()))",
        ),
    ),
    Answer(
        "06.1",
        "keeps debts by id, and returns a future of its own in half precision",
        None,
        _hook(
            owed="residuals.get(id(parameter), 0)",
            keep="residuals.update(zip(map(id, parameters), rest.split(sizes)))",
            end="""\
future = torch.futures.Future()
    work.get_future().add_done_callback(lambda done: future.set_result(done.value()[0]))
    return future""",
        ),
    ),
]

_FINDS = _REACHED + _FLAGS + _ADD + _LISTS


def _finds(old, new):
    return _unused(changed(_FINDS, (old, new)))


def _by_layer(test):
    return _finds(
        _FLAGS,
        f"""\
    parts = {{n: n.partition(".")[0] for n in trained}}
    heads = {{parts[n] for n, g in zip(trained, gradients) if {test}}}
    counts = torch.tensor([parts[n] in heads for n in trained], dtype=torch.int64)
""",
    )


_BRANCHES = [
    Answer(
        "06.2",
        "returns before it talks, if it reaches everything",
        "deadlock",
        _finds(_FLAGS, "    if None not in gradients:\n        return [], []\n" + _FLAGS),
    ),
    Answer("06.2", "decides by layer", "by-layer", _by_layer("g is not None")),
    Answer("06.2", "decides by weight", "by-layer", _by_layer('g is not None and "weight" in n')),
    Answer(
        "06.2",
        "takes the names of a state dict",
        "twice-named",
        _finds("model.named_parameters()", "model.state_dict(keep_vars=True).items()"),
    ),
    Answer(
        "06.2",
        "names a shared weight twice",
        "twice-named",
        _finds("named_parameters()", "named_parameters(remove_duplicate=False)"),
    ),
    Answer(
        "06.2",
        "finds what all ranks but one reach nowhere",
        "too-few",
        _finds("count < world_size", "count < world_size - 1"),
    ),
    Answer(
        "06.2",
        "finds what no rank reaches, too",
        "both-lists",
        _finds("0 < count < world_size", "count < world_size"),
    ),
    Answer(
        "06.2",
        "knows of 4 ranks",
        "fixed-size",
        _finds("dist.get_world_size(), counts", "4, counts"),
    ),
    Answer(
        "06.2",
        "counts on from call to call",
        "kept",
        "num_reached = {}\n\n\n"
        + _finds(
            "counts.tolist()\n",
            "counts.tolist()\n"
            "    for n, count in zip(trained, counts):\n"
            "        num_reached[n] = num_reached.get(n, 0) + count\n"
            "    counts = [num_reached[n] for n in trained]\n",
        ),
    ),
    Answer("06.2", "adds up bools", "any-rank", _finds("int64", "bool")),
    Answer(
        "06.2",
        "takes the least flag",
        "any-rank",
        _finds("(counts)\n", "(counts, dist.ReduceOp.MIN)\n"),
    ),
    Answer(
        "06.2",
        "sends 16 bytes a flag",
        "bytes",
        _unused(
            _FINDS.replace("int64", "complex128").replace("counts.tolist", "counts.real.tolist")
        ),
    ),
    Answer(
        "06.2",
        "returns parameters",
        "no-lists",
        _finds("[n for n, count in zip(trained,", "[n for n, count in zip(trained.values(),"),
    ),
    Answer(
        "06.2",
        "freezes what it finds",
        "left-changed",
        _finds(
            "    return",
            "    [model.get_parameter(n).requires_grad_(False) for n in freeze]\n    return",
        ),
    ),
    Answer(
        "06.2",
        "puts the model in eval mode",
        "left-changed",
        _unused(f"    model.eval()\n{_FINDS}"),
    ),
    Answer(
        "06.2",
        "leaves its hooks",
        "left-changed",
        _unused(
            _BACKWARD
            + """\
    kept, gradients = [p.grad for p in trained.values()], dict.fromkeys(trained)
    for n, p in trained.items():
        p.register_hook(lambda g, n=n: gradients.update({n: g}))
    loss.backward()
    for p, old in zip(trained.values(), kept):
        p.grad = old
    gradients = gradients.values()
"""
            + _FLAGS
            + _ADD
            + _LISTS
        ),
    ),
    Answer(
        "06.2",
        "sends a flag for frozen parameters, too, and returns tuples",
        None,
        _unused(
            _REACHED
            + """\
    found = dict(zip(trained, gradients))
    counts = torch.tensor([found.get(n) is not None for n, _ in model.named_parameters()]).long()
    dist.all_reduce(counts)
    counts = dict(zip(dict(model.named_parameters()), counts.tolist()))
    find = (n for n in trained if 0 < counts[n] < dist.get_world_size())
    return tuple(n for n in trained if counts[n] == 0), tuple(find)
"""
        ),
    ),
]

ANSWERS = [*_HOOKS, *_BRANCHES]
