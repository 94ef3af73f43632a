"""
Errors of torch in one line, without what differs from run to run.
"""

import re
import time
from collections.abc import Callable

import torch.distributed as dist

_ASPECTS = "Collectives differ in the following aspects:"
_CUT = (
    r"^\[/[^\]]*\] ",  # the file of Gloo that raises
    r"[. ]*This is typically caused by.*",
    r"\[[0-9a-fA-F.:]+\](:\d+)?",  # an address
    r"0x[0-9a-fA-F]+",
)


def short(error: BaseException) -> str:
    """
    Return what an error of torch says in one line that is the same on every run.

    Of a comparison by TORCH_DISTRIBUTED_DEBUG=DETAIL it is what differs.

    Args:
        error: An exception.
    """
    text = str(error).strip()
    before, found, aspects = text.partition(_ASPECTS)
    if found:
        aspects = " ".join(aspects.split()).replace("vs ", " vs ")  # torch forgets the space
        return f"calls differ: {aspects}"
    first = before.partition("\n")[0].replace("reset by peer", "closed by peer")  # it is a race
    for pattern in _CUT:
        first = re.sub(pattern, "", first)
    return " ".join(first.split())


def attempt(what: str, call: Callable[[], object], soon_s: float = 1.0) -> None:
    """
    Make a call and print how it ended on this rank: at once or late, and with which error.

    Args:
        what: What to call it.
        call: Function without arguments.
        soon_s: Seconds that are still at once.

    Lesson: 10_hangs.
    """
    began_s, said = time.monotonic(), "no error"
    try:
        call()
    except RuntimeError as error:
        said = short(error)
    when = "at once" if time.monotonic() - began_s < soon_s else "late"
    # In one piece, as torchrun's ranks share one output, and write as soon as they print.
    print(f"{what}, rank {dist.get_rank()}: {when}, {said}\n", end="", flush=True)
