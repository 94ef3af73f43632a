"""
The right pooled statistics of BatchNorm in task 06.3, and those that usual mistakes give.

Legend: w ranks; rank r has n_r samples, a mean and a variance of them; N in all; C channels.
"""

import torch

STATISTICS = ("running_mean", "running_var")
_FAR = 100
_OTHER_ROUNDINGS = 16  # in one rank's part, in addition to those of the sum
_FEWER_DIGITS = 2.0**-6  # a relative error as in a bfloat16, which has 8 binary digits


class Pooled:
    """
    The pooled statistics of a case, and those of the usual mistakes; all are (C,) float64.

    Args:
        samples: A list of the numbers of samples n_r, in rank order.
        before: A list of the ranks' own statistics, each {name: tensor (C,)}.
        centre: The number that all samples are near to.
    """

    def __init__(self, samples, before, centre):
        n = torch.tensor(samples, dtype=torch.float64)[:, None]  # (w, 1)
        means, variances = (
            torch.stack([each[name] for each in before]).double() for name in STATISTICS
        )
        total, world_size = n.sum(), len(samples)
        self._is_far = centre >= _FAR
        self.mean = (n * means).sum(0) / total
        distances = (means - self.mean).square()
        apart, within = n * distances, (n - 1) * variances
        both = (within + apart).sum(0)
        self.variance = both / (total - 1)
        self._plain_mean, self._own, self._own_variances = means.mean(0), means, variances
        self._less_1_mean = ((n - 1) * means).sum(0) / (n - 1).sum()
        self._by_own_count = (n * means).sum(0) / (world_size * n)  # (w, C)
        self._variances = {
            "within-only": [
                (n * variances).sum(0) / total,
                within.sum(0) / total,
                within.sum(0) / (total - 1),
                within.sum(0) / (n - 1).sum(),
                variances.mean(0),
            ],
            "biased": [
                (n * variances + apart).sum(0) / total,
                (n * variances + apart).sum(0) / (total - 1),
                both / total,
                both / (n - 1).sum(),
            ],
            "distance-once": [
                (within + distances).sum(0) / total,
                (within + distances).sum(0) / (total - 1),
            ],
            "root": [self.variance.sqrt()],
        }
        self._variances_by_own_count = [  # (w, C) each
            both / count for count in (n - 1, n, world_size * n - 1, world_size * n)
        ]
        unit = torch.finfo(torch.float32).eps / 2
        roundings = unit * (world_size + _OTHER_ROUNDINGS)
        self._mean_off = roundings * means.abs().amax(0)
        # Far from zero, squares must be taken around a mean; near zero, they may be taken around
        # zero. A mean that is merged rank by rank is rounded each time, as is a distance from it.
        offsets = (means - self.mean if self._is_far else means).abs().amax(0)
        rounded = 2 * unit * world_size * means.abs().amax(0) * offsets
        self._variance_off = (
            roundings * (self.variance + offsets.square()) + self._mean_off.square() + rounded
        )

    def has_mean(self, got, mean=None):
        """
        Tell whether the means `got` are `mean`, up to rounding. Default: those of all samples.
        """
        mean = self.mean if mean is None else mean
        return bool(((got.double() - mean).abs() <= self._mean_off).all())

    def _has_variance(self, got, variance):
        return bool(((got.double() - variance).abs() <= self._variance_off).all())

    def are_right(self, got):
        """
        Tell whether a rank's statistics, by name, are those of all samples.
        """
        mean, variance = (got[name] for name in STATISTICS)
        return self.has_mean(mean) and self._has_variance(variance, self.variance)

    def how_mean(self, rank, got):
        """
        Return the mistake that explains a rank's wrong means.

        Returns:
            tuple: The mistake's name, and a sentence about it.
        """
        got, own = got.double(), self._own[rank]
        if self.has_mean(got, self._plain_mean):
            return "unweighted", "The mean is the plain mean of the ranks' means."
        if self.has_mean(got, self._less_1_mean):
            return "unweighted", "The mean weights each rank by its number of samples minus 1."
        if self.has_mean(got, self._by_own_count[rank]):
            fact = (
                "The mean is a sum, divided by the world size times this rank's number of samples."
            )
            return "own-count", fact
        share = ((got - own) * (self.mean - own)).sum() / (self.mean - own).square().sum()
        if self.has_mean(got, own + share * (self.mean - own)):
            fact = (
                f"The mean is {share:.2g} of the way from this rank's mean to that of all samples."
            )
            return "part-way", fact
        if bool(((got - self.mean).abs() <= _FEWER_DIGITS * self._own.abs().amax(0)).all()):
            return "digits", "The mean is nearly right, but its error is too large for float32."
        return "values", "The mean is not that of all samples."

    def how_variance(self, rank, got):
        """
        Return the mistake that explains a rank's wrong variances, and a sentence about it.
        """
        got = got.double()
        if torch.equal(got, self._own_variances[rank]):
            return "unchanged", "The mean is right, but the variance is unchanged."
        for mistake, candidates in self._variances.items():
            if any(self._has_variance(got, one) for one in candidates):
                return mistake, "The mean is right, but the variance is wrong."
        if any(self._has_variance(got, one[rank]) for one in self._variances_by_own_count):
            fact = "The mean is right, but squared distances are divided by this rank's samples."
            return "own-count", fact
        if self._is_far:
            return "cancels", "Only the variance is wrong. With means near 0, it is right."
        if bool(((got - self.variance).abs() <= _FEWER_DIGITS * self.variance).all()):
            return "digits", "The variance is nearly right, but its error is too large for float32."
        return "values", "The mean is right, but the variance is wrong."
