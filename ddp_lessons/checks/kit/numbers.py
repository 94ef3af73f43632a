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


def words(value, most=8):
    """
    Return a value in a few words: a tensor by its first numbers, dtype and shape.
    """
    if not isinstance(value, torch.Tensor):
        text = repr(value)
        return text if len(text) <= 100 else f"{text[:97]}..."
    numbers = value.reshape(-1)[:most].tolist()
    listed = ", ".join(f"{one:g}" if isinstance(one, float) else str(one) for one in numbers)
    more = ", ..." if value.numel() > most else ""
    dtype = str(value.dtype).removeprefix("torch.")
    shape = f" of shape {tuple(value.shape)}" if value.dim() != 1 else ""
    return f"[{listed}{more}] {dtype}{shape}"
