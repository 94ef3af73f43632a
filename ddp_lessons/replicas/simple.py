"""
Three replicas that average after backward: by parameter, in one message, in buckets.

Shapes: a flat message of parameters with n_1, n_2, ... elements is (n_1 + n_2 + ...,).
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import torch.distributed as dist

from .base import Replica
from .buckets import BUCKET_CAP_BYTES, FIRST_BUCKET_CAP_BYTES, make_bucket, plan_buckets

if TYPE_CHECKING:
    from torch import nn


class NaiveReplica(Replica):
    """
    Average gradients with one all-reduce a parameter, one after the other.

    Every message pays the latency of the network once, and a model has many small parameters.

    Collective: every rank must make it, with the same module and arguments.

    Args and Raises: as Replica.

    Lesson: 05_replicas.
    """

    def _averages(self):
        averages = [self._weighted(parameter) for parameter in self.trained]
        for average in averages:
            if average.numel():
                dist.all_reduce(average, group=self.group)
        return averages


class BucketedReplica(Replica):
    """
    Average gradients bucket by bucket, last parameters first, after backward.

    Few messages, and a bounded amount of memory for them: but for the first, as large as the cap.

    Collective: every rank must make it, with the same module and arguments.

    Args:
        module, group, broadcast_buffers, find_unused_parameters: As in Replica.
        bucket_cap_bytes: Bytes at which a bucket is full.
        first_bucket_cap_bytes: The same for the first bucket to be sent.

    Raises:
        BadInput: As Replica; or a cap is not positive, or not the same on every rank.

    Lesson: 05_replicas.
    """

    def __init__(
        self,
        module: nn.Module,
        group: dist.ProcessGroup | None = None,
        broadcast_buffers: bool = True,
        find_unused_parameters: bool = False,
        bucket_cap_bytes: int = BUCKET_CAP_BYTES,
        first_bucket_cap_bytes: int = FIRST_BUCKET_CAP_BYTES,
    ) -> None:
        caps = {
            "bucket_cap_bytes": bucket_cap_bytes,
            "first_bucket_cap_bytes": first_bucket_cap_bytes,
        }
        super().__init__(module, group, broadcast_buffers, find_unused_parameters, **caps)
        last = len(self.trained) - 1
        plan = plan_buckets(self.trained[::-1], bucket_cap_bytes, first_bucket_cap_bytes)
        self.buckets = [tuple(last - position for position in bucket) for bucket in plan]

    @property
    def bucket_bytes(self) -> list[int]:
        """
        Bytes of each bucket, in the order in which they are sent.
        """
        return [
            sum(self.trained[i].numel() * self.trained[i].element_size() for i in bucket)
            for bucket in self.buckets
        ]

    def _averages(self):
        averages: list = [None] * len(self.trained)
        for bucket in self.buckets:
            members = [self.trained[index] for index in bucket]
            flat, views = make_bucket(members)
            for parameter, view in zip(members, views, strict=True):
                self._weighted(parameter, out=view)
            if flat.numel():
                dist.all_reduce(flat, group=self.group)
            for index, view in zip(bucket, views, strict=True):
                averages[index] = view
        return averages


class FlatReplica(BucketedReplica):
    """
    Average gradients with one all-reduce for all parameters of a dtype, after backward.

    The fewest messages there can be, and a second copy of all gradients.

    Collective: every rank must make it, with the same module and arguments.

    Args and Raises: as Replica.

    Lesson: 05_replicas.
    """

    def __init__(
        self,
        module: nn.Module,
        group: dist.ProcessGroup | None = None,
        broadcast_buffers: bool = True,
        find_unused_parameters: bool = False,
    ) -> None:
        endless = sys.maxsize
        super().__init__(module, group, broadcast_buffers, find_unused_parameters, endless, endless)
