"""
Helpers of tasks 04.1 to 04.4, which judge the shares of ranks and the cost of an answer.
"""

FEW, MANY = 10, 40
"""
Two numbers of samples: few enough for a picture to show them all, and so many that two orders, or
two ways to distribute them, are not equal by chance.
"""


def drawn_epoch(draw):
    """
    Draw a seed and an epoch.
    """
    return {"seed": draw.randint(0, 10**6), "epoch": draw.randint(1, 50)}


def judge_shares(case_result, shares, mistake=None, lost="overlap"):
    """
    Refuse shares that are no lists of samples, have wrong lengths, or leave samples out.

    Args:
        case_result: The CaseResult.
        shares: The share of each rank, in rank order.
        mistake: Name of the mistake for any of these faults; None: each fault has its own.
        lost: Name of the mistake for samples that no rank has, if `mistake` is None.
    """
    num_samples, num_ranks = case_result.case["num_samples"], len(shares)
    for rank, share in enumerate(shares):
        if not isinstance(share, list | tuple) or any(type(one) is not int for one in share):
            fact = "A shard must be a list of whole numbers."
            raise case_result.wrong(mistake or "no-list", rank, got=share, fact=fact)
        for index in share:
            if not 0 <= index < num_samples:
                fact = f"There is no sample {index}: samples are 0 to {num_samples - 1}."
                raise case_result.wrong(mistake or "no-sample", rank, got=share, fact=fact)
    length, lengths = -(-num_samples // num_ranks), [len(share) for share in shares]
    if lengths != [length] * num_ranks:
        rank = next(rank for rank in range(num_ranks) if lengths[rank] != length)
        fact = f"The shards have {', '.join(map(str, lengths))} samples; each must have {length}."
        mistake = mistake or _length_mistake(lengths, num_samples, length)
        raise case_result.wrong(mistake, rank, got=shares[rank], fact=fact)
    absent = set(range(num_samples)).difference(*shares)
    if absent:
        number = f"{len(absent)} of {num_samples}"
        fact = f"Samples that no rank has: {number}. The first of them is {min(absent)}."
        raise case_result.wrong(mistake or lost, 0, got=shares[0], fact=fact)


def _length_mistake(lengths, num_samples, length):
    num_ranks = len(lengths)
    if lengths == [num_samples] * num_ranks:
        return "all-samples"
    if lengths == [num_samples // num_ranks] * num_ranks:
        return "dropped"
    if num_samples < num_ranks:
        return "fewer"
    if num_samples > FEW and lengths == [-(-FEW // num_ranks)] * num_ranks:
        return "kept"
    if len({*lengths}) == 1 and num_ranks < 4 and lengths[0] == -(-num_samples // 4):
        return "other-size"
    return "too-long" if max(lengths) > length else "unequal"


def as_list(value):
    """
    Return a value if it is a list or tuple, or an empty list.
    """
    return value if isinstance(value, list | tuple) else []


def judge_cost(case_result, what_is, most_bytes):
    """
    Refuse an answer that takes more than one call, or more bytes than needed.
    """
    for rank, events in enumerate(case_result.traces):
        moved = [event for event in events if event.is_communication]
        num_bytes = sum(event.input_bytes for event in moved)
        if len(moved) > 1 or num_bytes > most_bytes:
            calls = "1 call" if len(moved) == 1 else f"{len(moved)} calls"
            fact = (
                f"{what_is} right, but it took {calls} with {num_bytes} bytes; 1 with "
                f"{most_bytes} is enough."
            )
            raise case_result.wrong("cost", rank, fact=fact)
