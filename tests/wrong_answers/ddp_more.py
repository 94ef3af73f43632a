"""
More answers to exercise 06: how a hook waits, whose debts are whose, what is on the edge.
"""

from bank import Answer

from wrong_answers.ddp import _hook

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

ANSWERS = [*_HOOKS]
