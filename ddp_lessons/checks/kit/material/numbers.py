"""
Numbers for cases, tolerances that follow from the dtype, and words for tensors.

Legend: u is the unit roundoff of a dtype, half its epsilon; w ranks.
"""

import hashlib

import torch


def generator(case, rank=None):
    """
    Return a torch.Generator on the CPU for a case: the same in the kernel and on the ranks.

    Args:
        case: The Case.
        rank: Rank whose own numbers are wanted; None: numbers that all ranks share.
    """
    digest = hashlib.sha256(f"{case.seed} {rank}".encode()).digest()
    return torch.Generator().manual_seed(int.from_bytes(digest[:6]))


def whole_numbers(case, rank, shape, dtype=torch.float32, most=9):
    """
    Return whole numbers from -most to most, of any dtype. None of them is 0.

    Their sums are exact in every order, as long as they stay below 1 / u (256 in bfloat16, 2,048
    in float16, 16,777,216 in float32). So results are compared without a tolerance.

    Args:
        case: The Case, whose seed decides.
        rank: Whose numbers; None: the same on all ranks.
        shape: Their shape.
        dtype: Their dtype.
        most: The greatest.
    """
    rng = generator(case, rank)
    amounts = torch.randint(1, most + 1, shape, generator=rng)
    signs = 2 * torch.randint(0, 2, shape, generator=rng) - 1
    return (amounts * signs).to(dtype)


def normal_numbers(case, rank, shape, dtype=torch.float32):
    """
    Return normally distributed numbers; the rest as in `whole_numbers`.
    """
    return torch.randn(shape, generator=generator(case, rank), dtype=torch.float64).to(dtype)


def sum_error(terms):
    """
    Return how far a sum of floating-point terms may be off, in any order of adding them.

    It is (n - 1) u / (1 - (n - 1) u) times the sum of the absolute values, for n terms.

    Args:
        terms: The terms, tensors of one shape and dtype.

    Returns:
        torch.Tensor: For each element the greatest error, float64.

    Source: N. Higham, Accuracy and Stability of Numerical Algorithms, section 4.2.
    """
    unit = torch.finfo(terms[0].dtype).eps / 2
    share = (len(terms) - 1) * unit
    return share / (1 - share) * sum(term.double().abs() for term in terms)


def first_difference(got, expected):
    """
    Return the place, in a row, of the first number that differs most; 0 if they cannot be compared.
    """
    both = (got, expected)
    if not all(isinstance(one, torch.Tensor) and one.numel() for one in both):
        return 0
    if got.shape != expected.shape:
        return 0
    off = (got.reshape(-1).double() - expected.reshape(-1).double()).abs()
    return int(off.nan_to_num(torch.inf).argmax())


def words(value, most=8, start=0, digits=6):
    """
    Return a value in a few words: a tensor by some of its numbers, dtype and shape.

    Args:
        value: The value.
        most: How many numbers of a tensor.
        start: The first of them, in a row.
        digits: Digits of a number that is not whole.
    """
    if not isinstance(value, torch.Tensor):
        text = repr(value)
        return text if len(text) <= 100 else f"{text[:97]}..."
    numbers = value.reshape(-1)[start : start + most].tolist()
    listed = ", ".join(
        f"{one:.{digits}g}" if isinstance(one, float) else str(one) for one in numbers
    )
    listed = f"..., {listed}" if start else listed
    more = ", ..." if value.numel() > start + most else ""
    dtype = str(value.dtype).removeprefix("torch.")
    shape = f" of shape {tuple(value.shape)}" if value.dim() != 1 else ""
    return f"[{listed}{more}] {dtype}{shape}"


def words_of_both(got, expected):
    """
    Return what came and what should have, in words that differ if they do.

    Of long tensors the numbers from the largest difference on are shown, with as many digits as it
    takes to see one.
    """
    if isinstance(got, dict) and isinstance(expected, dict):  # long ones would be cut to one text
        differ = [k for k in {**got, **expected} if got.get(k, ...) is not expected.get(k, ...)]
        differ = [k for k in differ if repr(got.get(k, ...)) != repr(expected.get(k, ...))]
        got, expected = ({k: one[k] for k in differ if k in one} for one in (got, expected))
    start = first_difference(got, expected)
    start = start if start >= 8 else 0
    for digits in (6, 9, 17):
        told = words(got, start=start, digits=digits), words(expected, start=start, digits=digits)
        if told[0] != told[1]:
            break
    return told
