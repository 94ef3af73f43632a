"""
The common part of the tasks of exercise 12: the cost of a call, a result as a number, and batches.
"""

import torch

from ddp_lessons.checks.kit import normal_numbers


def number_of(result):
    """
    Return a result as a float, or None if it is not a number.
    """
    if isinstance(result, str | bytes):
        return None
    try:
        return float(result)
    except (TypeError, ValueError, RuntimeError):
        return None


def fact_of_price(call, most_bytes):
    """
    Return a sentence if an AnswerCall makes more than one collective or sends too much, else "".

    Args:
        call: The AnswerCall.
        most_bytes: The most bytes that a rank may hand over in a call.
    """
    events = [event for event in call.events if event.is_communication]
    if len(events) > 1:
        names = ", ".join(event.name for event in events)
        return (
            f"The result is right, but a call makes {len(events)} collectives ({names}); 1 will do."
        )
    num_bytes = sum(event.input_bytes for event in events)
    if num_bytes > most_bytes:
        return f"The result is right, but it hands over {num_bytes} bytes; {most_bytes} will do."
    return ""


def judge_price(case_result, rank, call, most_bytes):
    """
    Refuse a call that makes more than one collective, or hands over more bytes than are needed.

    Args:
        case_result: The CaseResult.
        rank: The rank that made the call.
        call: The AnswerCall.
        most_bytes: The most bytes that a rank may hand over in a call.
    """
    if fact := fact_of_price(call, most_bytes):
        raise case_result.wrong("cost" if "collectives" in fact else "bytes", rank, fact=fact)


def batch_of(case, rank, call=0):
    """
    Return the batch (n_r, C) of a rank, in the dtype of the case, for one of several calls.

    Channels differ in mean and spread, and ranks in their means. The case's `offset` is added to
    all numbers. A later call has other numbers of samples.
    """
    sizes, channels = case["samples"], case["channels"]
    size = sizes[(rank + call) % len(sizes)]
    size += call if size else 0
    numbers = normal_numbers(case, (rank, call), (size, channels), torch.float64)
    spread = torch.linspace(0.5, 2, channels, dtype=torch.float64)
    centre = torch.linspace(-1, 1, channels, dtype=torch.float64) + rank / 2 - call
    dtype = getattr(torch, case["dtype"])
    return (numbers * spread + centre + case.data.get("offset", 0)).to(dtype)


def within(got, expected, slack):
    """
    Tell whether a tensor is the expected one, up to `slack`; nan is not.
    """
    return bool(((got.double() - expected).abs() <= slack).all())
