"""
Latency and bandwidth from measurements, with how sure one may be of them.

Sizes run over many decades, and a measurement is off by a share of its time rather than by a
fixed number of seconds. So the fit weighs each sample by 1 / (its expected seconds) squared; plain
least squares would look at the largest sizes only and find no latency at all.
"""

from dataclasses import dataclass
from math import inf, isfinite, sqrt

from ddp_lessons.costs.link import Link
from ddp_lessons.errors import BadInput

_MOST_ROUNDS = 50


@dataclass(frozen=True)
class Interval:
    """
    A value and the bounds between which it lies with the confidence asked for.

    Args:
        value: The best guess.
        low: Lower bound.
        high: Upper bound; may be infinite.
    """

    value: float
    low: float
    high: float

    def __contains__(self, number):
        return self.low <= number <= self.high


@dataclass(frozen=True)
class Fit:
    """
    A fitted link and its uncertainty.

    Args:
        latency_s: Interval of the latency, in seconds.
        bandwidth_bytes_per_s: Interval of the bandwidth.
        error_share: Standard deviation of the measured over the fitted seconds, as a share.
        confidence: Of the intervals, for example 0.95.
        num_samples: Measurements behind it.
    """

    latency_s: Interval
    bandwidth_bytes_per_s: Interval
    error_share: float
    confidence: float
    num_samples: int
    _covariance: tuple
    _quantile: float
    _num_rounds: float
    _byte_share: float

    @property
    def link(self):
        """
        The fitted Link.
        """
        return Link(self.latency_s.value, self.bandwidth_bytes_per_s.value)

    def predict(self, num_bytes, num_rounds=None, byte_share=None):
        """
        Predict the seconds of one more measurement.

        Args:
            num_bytes: Its size in bytes.
            num_rounds: Rounds of the collective; None means as in the fit.
            byte_share: Bytes on its critical path over `num_bytes`; None means as in the fit.

        Returns:
            Interval: Seconds. Its bounds hold the noise of one measurement too.

        Lesson: 03_ring.
        """
        x = self._num_rounds if num_rounds is None else num_rounds
        y = (self._byte_share if byte_share is None else byte_share) * num_bytes
        value = x * self.latency_s.value + y / self.bandwidth_bytes_per_s.value
        aa, ab, bb = self._covariance
        spread = sqrt(max(0.0, x * x * aa + 2 * x * y * ab + y * y * bb))
        reach = self._quantile * sqrt(spread**2 + (self.error_share * value) ** 2)
        return Interval(value, max(0.0, value - reach), value + reach)


def fit(samples, num_rounds=1, byte_share=1.0, confidence=0.95):
    """
    Fit latency and bandwidth to measured times by weighted least squares.

    Args:
        samples: Pairs (bytes, seconds), at least three, of at least two sizes. Take the median
            or the least of several runs for each; a single run may have been interrupted.
        num_rounds: Messages one after the other in what was measured: 1 for a single message, or
            the first number of `critical_path` for a collective.
        byte_share: Bytes one after the other, over the bytes given: 1 for a message, or the
            second number of `critical_path`.
        confidence: How often the intervals should hold the truth, between 0 and 1.

    Returns:
        Fit: Intervals of both numbers. They follow Student's t, so they are wide for few samples.

    Raises:
        BadInput: Too few samples or sizes, an impossible number, or times that do not grow with
            the size, from which no bandwidth can be told.

    Source: weighted least squares, for example Draper, Smith, "Applied Regression Analysis", 1998.
    Lesson: 03_ring.
    """
    points = _checked(samples, num_rounds, byte_share, confidence)
    rows = [(num_rounds, byte_share * num_bytes, seconds) for num_bytes, seconds in points]
    expected = [seconds for *_, seconds in rows]
    # Weights come from the expected times, not from the measured ones, or low outliers would
    # weigh most. The expected times come from the fit: so it is repeated until it rests.
    for _ in range(_MOST_ROUNDS):
        solution = _solve(rows, expected)
        before = expected
        expected = [
            max(x * solution[0] + y * solution[1], 1e-3 * seconds) for x, y, seconds in rows
        ]
        if all(abs(a - b) <= 1e-12 * a for a, b in zip(expected, before, strict=True)):
            break
    latency_s, s_per_byte, (aa, ab, bb) = solution
    free = len(rows) - 2
    noise = sqrt(
        sum(
            ((seconds - x * latency_s - y * s_per_byte) / t) ** 2
            for (x, y, seconds), t in zip(rows, expected, strict=True)
        )
        / free
    )
    covariance = tuple(noise**2 * entry for entry in (aa, ab, bb))
    quantile = _student_t(free, confidence)
    a_reach, b_reach = (quantile * sqrt(covariance[k]) for k in (0, 2))
    if latency_s < 0:
        # A latency cannot be negative. The best fit that is allowed then has none.
        weights = [1 / t**2 for t in expected]
        above = sum(w * y * s for w, (_, y, s) in zip(weights, rows, strict=True))
        s_per_byte = above / sum(w * y * y for w, (_, y, _) in zip(weights, rows, strict=True))
    if s_per_byte <= 0:
        raise BadInput(
            "No bandwidth to be told: expected seconds that grow with the bytes (got times that "
            "do not). Measure larger sizes, or more often."
        )
    lowest = s_per_byte - b_reach
    return Fit(
        Interval(max(0.0, latency_s), max(0.0, latency_s - a_reach), max(0.0, latency_s + a_reach)),
        Interval(1 / s_per_byte, 1 / (s_per_byte + b_reach), 1 / lowest if lowest > 0 else inf),
        noise,
        confidence,
        len(rows),
        covariance,
        quantile,
        num_rounds,
        byte_share,
    )


def _checked(samples, num_rounds, byte_share, confidence):
    points = [tuple(sample) for sample in samples]
    if len(points) < 3 or len({num_bytes for num_bytes, _ in points}) < 2:
        raise BadInput(
            "Too few measurements: expected at least three, of at least two sizes "
            f"(got {len(points)}, of {len({num_bytes for num_bytes, _ in points})}). Measure more."
        )
    for num_bytes, seconds in points:
        if not (isfinite(num_bytes) and num_bytes >= 0 and isfinite(seconds) and seconds > 0):
            raise BadInput(
                "Bad measurement: expected bytes of at least 0 and seconds above 0 "
                f"(got {num_bytes!r} and {seconds!r}). Leave it out."
            )
    if not (num_rounds > 0 and byte_share > 0):
        raise BadInput(
            "Nothing was sent: expected rounds and a share of bytes above 0 "
            f"(got {num_rounds!r} and {byte_share!r}). Fit a collective of two ranks or more."
        )
    if not 0 < confidence < 1:
        raise BadInput(
            f"Bad confidence: expected a number between 0 and 1 (got {confidence!r}). Pass 0.95."
        )
    return points


def _solve(rows, expected):
    # Normal equations of two unknowns, each row divided by its expected seconds.
    weighted = [
        (x / t, y / t, seconds / t) for (x, y, seconds), t in zip(rows, expected, strict=True)
    ]
    # Bytes are large beside rounds; in units of the largest the equations keep their digits.
    unit = max(y for _, y, _ in weighted)
    xx = sum(x * x for x, _, _ in weighted)
    xy = sum(x * y / unit for x, y, _ in weighted)
    yy = sum((y / unit) ** 2 for _, y, _ in weighted)
    xs = sum(x * s for x, _, s in weighted)
    ys = sum(y / unit * s for _, y, s in weighted)
    det = xx * yy - xy * xy
    latency_s, s_per_byte = (yy * xs - xy * ys) / det, (xx * ys - xy * xs) / det / unit
    return latency_s, s_per_byte, (yy / det, -xy / det / unit, xx / det / unit**2)


def _student_t(free, confidence):
    # scipy comes with scikit-learn; it is loaded here because only a fit needs it.
    from scipy.special import stdtrit

    return float(stdtrit(free, (1 + confidence) / 2))
