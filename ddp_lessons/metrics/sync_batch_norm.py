"""
BatchNorm over the samples of all ranks, with one collective forward and one backward.

Shapes: rank r has x_r (N_r, C, ...), and n_r values a channel: N_r times the pixels, if there are
any; n is the sum of all n_r. Statistics are (C,).

    forward    each rank gives n_r, its mean m_r, and s_r, its sum of squares around m_r
               m = sum n_r m_r / n        v = (sum s_r + sum n_r (m_r - m)^2) / n
               x^ = (x - m) / sqrt(v + eps)        y = weight x^ + bias
    backward   each rank gives the sums of dy and of dy x^ over its own values
               dx = weight / sqrt(v + eps) * (dy - mean of dy - x^ mean of dy x^), means over all n

Sums of x and of x^2 would do in place of m_r and s_r, and could be all-reduced. But v is then a
small difference of large numbers wherever the mean is far from 0. Squares around a mean are not.
"""

import torch
import torch.distributed as dist
from torch.autograd.function import once_differentiable
from torch.nn.modules.batchnorm import _BatchNorm

from .arguments import device_of, need_samples


def all_rank_statistics(
    x: torch.Tensor, dtype: torch.dtype = torch.float64, group: dist.ProcessGroup | None = None
) -> tuple[float, torch.Tensor, torch.Tensor]:
    """
    Return mean and variance of each channel over all ranks, with one all-gather.

    Every rank combines the same numbers in the same order, so all get the same bits.

    Collective: every rank must call it, also one without samples.

    Args:
        x: (N_r, C, ...) of this rank; N_r may be 0.
        dtype: What a rank's own sums are made in. Messages are float64.
        group: The process group, or None for the default group.

    Returns:
        tuple: n, a float; the mean and the variance, (C,) float64 on the device of x. The variance
        is that of these values alone, the biased one.

    Raises:
        BadInput: A channel has fewer than 2 values over all ranks; raised on every rank.

    Source: T. Chan, G. Golub, R. LeVeque, "Updating formulae and a pairwise algorithm for computing
    sample variances", 1979. Lesson: 12_metrics.
    """
    values = x.detach().to(dtype).transpose(0, 1).flatten(1)  # (N_r, C, ...) -> (C, n_r)
    num_channels, num_local = values.shape
    own_mean = values.sum(1, dtype=dtype) / max(num_local, 1)
    own_squares = (values - own_mean[:, None]).square().sum(1)
    own = torch.cat([own_mean.new_tensor([num_local]), own_mean, own_squares])
    own = own.double().to(device_of(group))  # (1 + 2C,)
    everyone = [torch.empty_like(own) for _ in range(dist.get_world_size(group))]
    dist.all_gather(everyone, own, group=group)
    table = torch.stack(everyone).to(x.device)  # (w, 1 + 2C)
    counts, means, squares = table.split([1, num_channels, num_channels], dim=1)
    total = counts.sum().item()
    need_samples(total, group, least=2)
    mean = (counts * means).sum(0) / total
    variance = (squares + counts * (means - mean).square()).sum(0) / total
    return total, mean, variance


class _Normalise(torch.autograd.Function):
    """
    Normalise by the statistics of all ranks; torch's autograd calls `backward`.
    """

    @staticmethod
    def forward(ctx, x, weight, bias, eps, dtype, group):
        total, mean, variance = all_rank_statistics(x, dtype, group)
        inverse = (variance + eps).rsqrt()
        normal = _normal(x, mean, inverse)
        y = normal if weight is None else normal * _wide(weight, x) + _wide(bias, x)
        ctx.save_for_backward(x, weight, mean, inverse)
        ctx.total, ctx.group = total, group
        ctx.mark_non_differentiable(mean, variance)
        return y.to(x.dtype), mean, variance, total

    @staticmethod
    @once_differentiable
    def backward(ctx, grad_y, *_):
        x, weight, mean, inverse = ctx.saved_tensors
        normal = _normal(x, mean, inverse)
        grad = grad_y.double()
        others = [dim for dim in range(x.dim()) if dim != 1]
        own = torch.stack([grad.sum(others), (grad * normal).sum(others)])  # (2, C)
        grad_x = grad_weight = grad_bias = None
        if ctx.needs_input_grad[0]:
            sums = own.to(device_of(ctx.group), copy=True)
            dist.all_reduce(sums, group=ctx.group)
            means = sums.to(x.device) / ctx.total
            scale = inverse if weight is None else inverse * weight.double()
            centred = grad - _wide(means[0], x) - normal * _wide(means[1], x)
            grad_x = (_wide(scale, x) * centred).to(x.dtype)
        if weight is not None:  # of this rank's samples: DDP averages them over ranks
            grad_bias, grad_weight = own.to(weight.dtype)
        return grad_x, grad_weight, grad_bias, None, None, None


def _normal(x, mean, inverse):
    return (x.double() - _wide(mean, x)) * _wide(inverse, x)


def _wide(numbers, x):
    # (C,) -> (1, C, 1, ...), as many dimensions as x has
    return numbers.double().view(1, -1, *[1] * (x.dim() - 2))


class SyncBatchNorm(_BatchNorm):
    """
    Normalise by the statistics of all ranks' samples in training, on CPUs too.

    Ranks may have unequally many samples, or none. In eval mode it is torch's BatchNorm: it takes
    the running statistics, and sends nothing. Running statistics are the same on every rank.

    Collective: in training every rank must call forward; and backward, if the input needs one.

    Args:
        num_features: Channels, C.
        options: Those of torch.nn.BatchNorm1d: eps, momentum, affine, track_running_stats.
        statistics_dtype: What a rank's own sums are made in: float64, or float32 for speed.
        group: The process group, or None for the default group.

    Source: S. Ioffe, C. Szegedy, "Batch Normalization", ICML 2015, algorithm 1; torch
    documentation, `torch.nn.SyncBatchNorm`. Lesson: 12_metrics.
    """

    def __init__(
        self,
        num_features: int,
        *,
        statistics_dtype: torch.dtype = torch.float64,
        group: dist.ProcessGroup | None = None,
        **options: float | None,
    ) -> None:
        super().__init__(num_features, **options)  # type: ignore[arg-type]  # flags are bool
        self.statistics_dtype, self.group = statistics_dtype, group

    def _check_input_dim(self, x):
        if x.dim() < 2:
            raise ValueError(f"expected 2 dimensions or more (got {x.dim()})")

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """
        Return x (N, C, ...) normalised, scaled and shifted; of the same shape and dtype.

        Collective: in training.
        """
        self._check_input_dim(x)
        if not self.training:
            return super().forward(x)
        y, mean, variance, total = _Normalise.apply(
            x, self.weight, self.bias, self.eps, self.statistics_dtype, self.group
        )
        if self.running_mean is not None:
            self._track(mean, variance * (total / (total - 1)))  # the unbiased one
        return y

    @torch.no_grad()
    def _track(self, mean, variance):
        self.num_batches_tracked.add_(1)
        share = self.momentum
        if share is None:  # the mean over all batches so far
            share = 1 / self.num_batches_tracked.item()
        for running, new in ((self.running_mean, mean), (self.running_var, variance)):
            running.copy_((1 - share) * running.double() + share * new)


def with_sync_batch_norm(
    module: torch.nn.Module,
    statistics_dtype: torch.dtype = torch.float64,
    group: dist.ProcessGroup | None = None,
) -> torch.nn.Module:
    """
    Return a module whose BatchNorm layers are SyncBatchNorm, with the parameters that they had.

    Args:
        module: A module; it is changed. One that is a BatchNorm itself is replaced.
        statistics_dtype: As for SyncBatchNorm.
        group: The process group, or None for the default group.

    Lesson: 12_metrics.
    """
    if isinstance(module, _BatchNorm) and not isinstance(module, SyncBatchNorm):
        layer = SyncBatchNorm(
            module.num_features,
            eps=module.eps,
            momentum=module.momentum,
            affine=module.affine,
            track_running_stats=module.track_running_stats,
            statistics_dtype=statistics_dtype,
            group=group,
        )
        layer.weight, layer.bias = module.weight, module.bias
        for name, buffer in module.named_buffers(recurse=False):
            setattr(layer, name, buffer)
        return layer.train(module.training)
    for name, child in module.named_children():
        setattr(module, name, with_sync_batch_norm(child, statistics_dtype, group))
    return module
