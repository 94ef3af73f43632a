"""
Foretell what a mesh of three axes holds, and what a training step on it takes: pure arithmetic.

Legend: d x t x p ranks, for data, tensor and pipeline; L layers; M micro-batches a step. Each of d
groups of t p ranks has a whole model and an equal part of the batch. Each of p stages has L / p
layers, and each of t ranks of a stage a t-th of each of them. Neighbours are the ranks of one
stage, then come the stages, then the data axis:

    rank    = (place on data x p + place on pipeline) x t + place on tensor
    held    = state / (t p)
    compute = alone / (d t p), times (M + p - 1) / M: the pipeline's bubble
    tensor  = 4 L / p all-reduces among t for each micro-batch: two forward, two backward a layer
    pipe    = 2 messages for each micro-batch, if there is a next stage: forward and back
    data    = one all-reduce among d, of the gradients that a rank has

What the first two send are activations: those of a micro-batch are a d-th and an M-th of those of
the batch. An axis runs inside of a host if every line of it does; else it has the slower link.
Nothing is hidden behind compute here, so the seconds are those of the worst case.
"""

from dataclasses import dataclass

from ...costs import Link, collective_s
from .axes import axis_lines

AXES = ("data", "pipeline", "tensor")
"""
From the farthest apart to the nearest.
"""


@dataclass(frozen=True)
class Job:
    """
    Hold what is to be trained, and on what.

    Args:
        num_ranks: Ranks that there are.
        ranks_per_host: Of how many neighbours a host has.
        memory_bytes: What a rank can hold of the state.
        num_layers: L, layers of one shape.
        num_heads: Attention heads of a layer: t must divide them.
        num_micro_batches: M.
        state_bytes: Weights, gradients and optimizer's state of the whole model.
        gradient_bytes: Gradients alone.
        activation_bytes: What one layer hands to the next, for the whole batch.
        alone_s: Seconds that one rank would compute for a step.
        inside: The Link between ranks of a host.
        between: The Link between hosts.

    Lesson: 15_beyond_ddp, task 15.4.
    """

    num_ranks: int
    ranks_per_host: int
    memory_bytes: float
    num_layers: int
    num_heads: int
    num_micro_batches: int
    state_bytes: float
    gradient_bytes: float
    activation_bytes: float
    alone_s: float
    inside: Link
    between: Link


def held_bytes(job: Job, data: int, tensor: int, pipeline: int) -> float:
    """
    Return the bytes of state that a rank holds.

    Data parallel ranks hold copies of each other, so `data` changes nothing.
    """
    return job.state_bytes / (tensor * pipeline)


def link_of(job: Job, axis: str, data: int, tensor: int, pipeline: int) -> Link:
    """
    Return the Link that the messages along an axis have: the slower one if a line leaves a host.
    """
    sizes = {"data": data, "pipeline": pipeline, "tensor": tensor}
    leaves = any(
        line[0] // job.ranks_per_host != line[-1] // job.ranks_per_host
        for line in axis_lines(sizes, axis)
    )
    return job.between if leaves else job.inside


def step_parts(job: Job, data: int, tensor: int, pipeline: int) -> dict[str, float]:
    """
    Foretell the seconds of a step, part by part.

    Args:
        job: The Job.
        data: Size of the axis of copies, d.
        tensor: Size of the axis of cut layers, t.
        pipeline: Size of the axis of stages, p.

    Returns:
        dict: Seconds of "compute", with the bubble, and of what "tensor", "pipeline" and "data"
        send.

    Source: D. Narayanan and others, "Efficient Large-Scale Language Model Training on GPU Clusters
    Using Megatron-LM", SC 2021, section 3. Lesson: 15_beyond_ddp.
    """
    sizes = data, tensor, pipeline
    links = {axis: link_of(job, axis, *sizes) for axis in AXES}
    num_micro_batches = job.num_micro_batches
    micro_bytes = job.activation_bytes / (data * num_micro_batches)
    gradient_bytes = job.gradient_bytes / (tensor * pipeline)
    num_calls = 4 * job.num_layers // pipeline * num_micro_batches
    num_messages = 2 * num_micro_batches * (pipeline > 1)
    return {
        "compute": job.alone_s
        / (data * tensor * pipeline)
        * (num_micro_batches + pipeline - 1)
        / num_micro_batches,
        "tensor": num_calls * _ring_s(tensor, micro_bytes, links["tensor"]),
        "pipeline": num_messages * links["pipeline"].message_s(micro_bytes),
        "data": _ring_s(data, gradient_bytes, links["data"]),
    }


def step_s(job: Job, data: int, tensor: int, pipeline: int) -> float:
    """
    Foretell the seconds of a step: the sum of `step_parts`.
    """
    return sum(step_parts(job, data, tensor, pipeline).values())


def _ring_s(num_ranks, num_bytes, link):
    return collective_s("all_reduce", "ring", num_ranks, num_bytes, link)
