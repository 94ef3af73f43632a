"""
Exercise 03: a ring, and what it costs.

Legend: w ranks; n numbers of a tensor, cut into w chunks. In a ring to the right, rank r sends
to rank r + 1 only; in a ring to the left, to rank r - 1 only.
"""

from ddp_lessons.checks.ring.all_gather import all_gather
from ddp_lessons.checks.ring.all_reduce import all_reduce
from ddp_lessons.checks.ring.fit_link import fit_link
from ddp_lessons.checks.ring.predict_bytes import predict_bytes
from ddp_lessons.checks.ring.reduce_scatter import reduce_scatter

TASKS = (
    reduce_scatter,
    all_gather,
    all_reduce,
    fit_link,
    predict_bytes,
)
