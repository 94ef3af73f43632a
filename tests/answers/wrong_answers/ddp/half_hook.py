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
    Return the source of a hook; each argument replaces a part of a right hook.
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


ANSWERS = [
    Answer("06.1", "sends float32", "cost", _hook(message="target.clone()")),
    Answer("06.1", "forgets what rounding takes away", "no-feedback", _hook(keep="pass")),
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
    Answer("06.1", "takes the debt away", "values", _hook(rest="message - target")),
    Answer(
        "06.1",
        "keeps a part of the bucket itself",
        "view",
        _hook(
            share="buffer.div_(dist.get_world_size())",
            rest="target.sub_(message)",
        ),
    ),
    Answer("06.1", "does not divide", "average", _hook(share="bucket.buffer().clone()")),
    Answer("06.1", "sends float16", "overflow", _hook(message="target.half()")),
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
        "returns a tensor",
        "no-future",
        _hook(end="work.wait()\n    return buffer.copy_(message)"),
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
        "counts what it owes when all messages are added up",
        "wrong-debt",
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
