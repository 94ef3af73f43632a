"""
Answers to task 06.1.
"""

from bank import Answer

from wrong_answers.ddp.sources import IMPORTS


def _hook(
    *,
    share="bucket.buffer() / dist.get_world_size()",
    owed="residuals.get(parameter, 0)",
    message="target.bfloat16()",
    rest="target - message",
    keep="residuals.update(zip(parameters, rest.split(sizes)))",
    send="dist.all_reduce(message, async_op=True)",
    end="return work.get_future().then(lambda _: buffer.copy_(message))",
    before="",
):
    """
    Return the source of a hook that differs from a right one in what is given.
    """
    return (
        IMPORTS
        + f"""\
{before}def half_hook(residuals, bucket):
    buffer, parameters = bucket.buffer(), bucket.parameters()
    sizes = [parameter.numel() for parameter in parameters]
    target = {share}
    for parameter, part in zip(parameters, target.split(sizes)):
        part += {owed}
    message = {message}
    rest = {rest}
    {keep}
    work = {send}
    {end}
"""
    )


_DONE = """\
future = torch.futures.Future()
    future.set_result(buffer.copy_(message))
    return future"""

_AT_ONCE = "return work.get_future().then(lambda _: buffer.copy_(message))"


def _waiting(how):
    return _hook(end=f"{how}\n    {_AT_ONCE}")


ANSWERS = [
    Answer("06.1", "sends float32", "bytes", _hook(message="target.clone()")),
    Answer(
        "06.1",
        "rounds, and sends the rounded numbers as float32",
        "bytes",
        _hook(message="target.bfloat16().to(target.dtype)"),
    ),
    Answer("06.1", "forgets what rounding takes away", "no-feedback", _hook(keep="pass")),
    Answer(
        "06.1",
        "keeps what it owes by the bucket's number",
        "raised",
        IMPORTS
        + """\
def half_hook(residuals, bucket):
    buffer = bucket.buffer()
    target = buffer / dist.get_world_size()
    if bucket.index() in residuals:
        target += residuals[bucket.index()]
    message = target.bfloat16()
    residuals[bucket.index()] = target - message
    work = dist.all_reduce(message, async_op=True)
    return work.get_future().then(lambda _: buffer.copy_(message))
""",
    ),
    Answer(
        "06.1",
        "drops what it owes when a bucket changes",
        "rebuild",
        IMPORTS
        + """\
def half_hook(residuals, bucket):
    buffer = bucket.buffer()
    target = buffer / dist.get_world_size()
    key = bucket.index(), len(buffer)
    if key in residuals:
        target += residuals[key]
    message = target.bfloat16()
    residuals[key] = target - message
    work = dist.all_reduce(message, async_op=True)
    return work.get_future().then(lambda _: buffer.copy_(message))
""",
    ),
    Answer("06.1", "takes the debt away", "sign", _hook(rest="message - target")),
    Answer(
        "06.1",
        "adds new debts to old ones that were paid",
        "wrong-debt",
        _hook(
            keep="""\
for parameter, part in zip(parameters, rest.split(sizes)):
        residuals[parameter] = residuals.get(parameter, 0) + part"""
        ),
    ),
    Answer(
        "06.1",
        "takes the gradient for the target",
        "wrong-debt",
        _hook(rest="buffer / dist.get_world_size() - message"),
    ),
    Answer(
        "06.1",
        "keeps a part of the bucket itself",
        "view",
        _hook(
            share="buffer.div_(dist.get_world_size())",
            rest="target.sub_(message)",
        ),
    ),
    Answer(
        "06.1",
        "owes the message too",
        "wrong-debt",
        _hook(rest="target.clone()"),
    ),
    Answer("06.1", "does not divide", "summed", _hook(share="bucket.buffer().clone()")),
    Answer(
        "06.1",
        "divides before and after",
        "divided-twice",
        _hook(
            end="return work.get_future().then("
            "lambda _: buffer.copy_(message).div_(dist.get_world_size()))"
        ),
    ),
    Answer("06.1", "sends float16", "overflow", _hook(message="target.half()")),
    Answer(
        "06.1",
        "waits in the hook",
        "waits",
        _hook(end=f"work.wait()\n    {_DONE}"),
    ),
    Answer(
        "06.1",
        "waits for the future in the hook",
        "waits",
        _hook(
            end=f"work.get_future().wait()\n    {_DONE}",
        ),
    ),
    Answer(
        "06.1",
        "calls a blocking all-reduce",
        "waits",
        _hook(
            send="dist.all_reduce(message)",
            end=_DONE,
        ),
    ),
    Answer(
        "06.1",
        "makes the future's result before the message is through",
        "too-early",
        _hook(end=_DONE),
    ),
    Answer(
        "06.1",
        "returns a tensor",
        "no-future",
        _hook(end="work.wait()\n    return buffer.copy_(message)"),
    ),
    Answer(
        "06.1", "returns nothing", "no-future", _hook(end="work.wait()\n    buffer.copy_(message)")
    ),
    Answer(
        "06.1",
        "keeps debts in a global",
        "elsewhere",
        _hook(
            before="debts = {}\n\n\n",
            owed="debts.get(parameter, 0)",
            keep="debts.update(zip(parameters, rest.split(sizes)))",
        ),
    ),
    Answer(
        "06.1",
        "sends each parameter by itself",
        "cost",
        _hook(
            send="[dist.all_reduce(one, async_op=True) for one in message.split(sizes)]",
            end="futures = torch.futures.collect_all([one.get_future() for one in work])\n"
            "    return futures.then(lambda _: buffer.copy_(message))",
        ),
    ),
    Answer(
        "06.1",
        "divides after the sum, and owes in that unit",
        None,
        _hook(
            share="bucket.buffer().clone()",
            end="return work.get_future().then("
            "lambda _: buffer.copy_(message).div_(dist.get_world_size()))",
        ),
    ),
    Answer(
        "06.1",
        "gathers the messages, adds up in full precision, and owes in half precision",
        None,
        _hook(
            rest="(target - message).bfloat16()",
            send="[torch.empty_like(message) for _ in range(dist.get_world_size())]",
            end="future = dist.all_gather(work, message, async_op=True).get_future()\n"
            "    total = lambda _: buffer.copy_(sum(one.to(buffer.dtype) for one in work))\n"
            "    return future.then(total)",
        ),
    ),
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
