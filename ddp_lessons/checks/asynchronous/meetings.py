"""
The common part of the tasks in which ranks average their weights now and then: models, the mean,
and the cost of a meeting.

Legend: w ranks; (w, G) one row of weights for each rank; u is the unit roundoff of a dtype.
"""

import torch

from ddp_lessons.checks.kit import sum_error
from ddp_lessons.checks.kit.shared.regression import Regression, regression_batches

NUM_FEATURES = 4


def dtype_of(case):
    """
    Return the torch dtype that a case names.
    """
    return getattr(torch, case["dtype"])


def model_of(context):
    """
    Return this rank's model, the same on every rank. A part of it may be in eval mode.
    """
    model = Regression(context.case, NUM_FEATURES, dtype_of(context.case)).to(context.device)
    if "eval" in context.case.data:
        getattr(model, context["eval"]).eval()
    return model


def num_samples(case, rank):
    """
    Return the number of samples in a batch of a rank.
    """
    return case["samples"] + rank


def batches_of(case, rank):
    """
    Return the batches of one rank. All have the same size, which is larger on later ranks.
    """
    sizes = [num_samples(case, rank)] * case["batches"]
    return regression_batches(case, rank, sizes, NUM_FEATURES, dtype_of(case))


def mean_of(rows):
    """
    Return the mean of all ranks' weights, and how far a right answer's may be off.

    Args:
        rows: A list of the weights of each rank, (G,).

    Returns:
        tuple: Both (G,) float64.
    """
    stacked = torch.stack(rows).double()
    unit = torch.finfo(rows[0].dtype).eps / 2
    mean = stacked.mean(dim=0)
    # These are rounded: a sum of w terms, the factor 1 / w, a product, and this float64 mean.
    return mean, sum_error(rows) / len(rows) + 4 * unit * stacked.abs().mean(dim=0)


def is_within(got, expected, slack):
    """
    Tell whether numbers are the expected ones, up to `slack`; nan is not.
    """
    return bool(((got.double() - expected.double()).abs() <= slack).all())


def is_rounded(got, expected, size):
    """
    Tell whether numbers are the expected ones, but for bits that a 16-bit dtype does not have.

    Args:
        got: The numbers.
        expected: The right numbers.
        size: For each number the size of the terms that it is made of.
    """
    return is_within(got, expected, 4 * torch.finfo(torch.bfloat16).eps * size)


def judge_price(case_result, rank, events, num_meetings, num_bytes, what):
    """
    Refuse more than one call for each meeting, or more bytes than the trained weights have.

    Args:
        case_result: The CaseResult.
        rank: The rank.
        events: The events of all its meetings.
        num_meetings: Number of meetings that there must be.
        num_bytes: Bytes of the trained weights.
        what: The first words of the sentence about the fault, such as "The weights are".
    """
    calls = [event for event in events if event.is_communication]
    if len(calls) > num_meetings:
        fact = f"{what} right, but rank {rank} makes {len(calls)} calls; {num_meetings} will do."
        raise case_result.wrong("cost", rank, fact=fact)
    for event in calls:
        if event.input_bytes > num_bytes:
            fact = f"{what} right, but a call takes in {event.input_bytes} bytes; {num_bytes} "
            raise case_result.wrong("bytes", rank, fact=f"{fact}will do.")
