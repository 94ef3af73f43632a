"""
The parts of the proof on GPUs, as data: what each runs, where, and about how long it takes.

A part's command writes its findings to the file `{answer}`, as JSON: `outcomes`, a list of dicts
with `name`, `status` ("passed", "failed", "skipped" or "told", a finding that is no fault) and
`why`; and `figures`, as `figures.py` writes them. The command's exit status is 0 if it could do its
work, even if outcomes have failed.
"""

from dataclasses import dataclass

from ddp_lessons.course.notebooks.notebook_paths import all_notebooks

LIMIT_S = 480
"""
The most seconds of a part. So at least one part is done on a GPU that is lent for ten minutes.
"""

NUM_FAULT_SHARDS = 5


@dataclass(frozen=True)
class Layout:
    """
    A way to place ranks on GPUs.

    Args:
        name: A short name, which is in the names of parts.
        words: A description, such as "1 rank on one GPU, NCCL".
        num_ranks: Number of ranks.
        num_gpus: Number of GPUs that a part may see. The machine must have at least as many.
    """

    name: str
    words: str
    num_ranks: int
    num_gpus: int


@dataclass(frozen=True)
class Part:
    """
    One step of the proof, which does not depend on the others.

    Args:
        name: Its name on the command line, in the state and in the report.
        layout: The Layout of its ranks.
        command: Arguments for Python. `{answer}` stands for the file to write to, `{device}` for
            the device, "cpu" or "cuda".
        expected_s: Seconds that it takes, roughly.
        limit_s: Seconds after which it is ended.
        needs_gpu: Whether a CPU cannot stand in for a GPU.
    """

    name: str
    layout: Layout
    command: tuple
    expected_s: float
    limit_s: float = LIMIT_S
    needs_gpu: bool = False


def layouts(num_gpus):
    """
    Return the layouts by name: ranks that share a GPU, one rank on one, a rank on every GPU.

    Args:
        num_gpus: Number of GPUs of this machine. With fewer than 2 the last layout asks for 2.
    """
    several = max(num_gpus, 2)
    return {
        layout.name: layout
        for layout in (
            Layout("shared", "4 ranks share one GPU, Gloo", 4, 1),
            Layout("alone", "1 rank on one GPU, NCCL", 1, 1),
            Layout("each", f"{several} ranks, a GPU each, NCCL", several, several),
        )
    }


def all_parts(root, num_gpus):
    """
    Return every part, the most informative ones first.

    Args:
        root: The folder that holds the course.
        num_gpus: Number of GPUs of this machine.

    Returns:
        list[Part]: All parts, even those that need more GPUs than this machine has.
    """
    where = layouts(num_gpus)
    shared, alone, each = where["shared"], where["alone"], where["each"]
    places = all_notebooks(root)
    parts = [_gpu_tests(shared), _memory(shared), _memory(alone)]
    parts += [_notebook(place, shared) for place in places]
    parts += _faults(shared)
    parts += _speed(shared)
    parts += [_notebook(place, alone) for place in places]
    if num_gpus > 1:
        parts.append(_gpu_tests(each))
    parts += [_memory(each)]
    parts += [_notebook(place, each) for place in places]
    parts += _faults(each)
    parts += _speed(each)
    return parts


def _notebook(place, layout):
    command = ("benchmarks/proof_notebook.py", place.kind, place.stem, str(layout.num_ranks))
    name = f"{place.kind} {place.stem}, {layout.name}"
    return Part(name, layout, (*command, "{answer}"), 40, 240)


def _gpu_tests(layout):
    command = ("benchmarks/proof_tests.py", "{answer}", "--gpu")
    return Part(f"gpu tests, {layout.name}", layout, command, 60)


def _faults(layout):
    # The test of every fault runs on 2 and for 4 ranks.
    num_ranks = 4 if layout.num_ranks >= 4 else 2
    parts = []
    for shard in range(NUM_FAULT_SHARDS):
        command = ["benchmarks/proof_tests.py", "{answer}", "--faults", str(num_ranks)]
        command += ["--shard", str(shard), str(NUM_FAULT_SHARDS)]
        name = f"faults {shard + 1} of {NUM_FAULT_SHARDS}, {layout.name}"
        parts.append(Part(name, layout, tuple(command), 150))
    return parts


def _memory(layout):
    command = ("benchmarks/proof_memory.py", str(layout.num_ranks), "{device}", "{answer}")
    return Part(f"memory, {layout.name}", layout, command, 40, 180)


def _speed(layout):
    """
    Return the parts that run our benchmarks with tensors on GPUs, side by side with torch's own.
    """
    few = ("--no-fail", "--device", "{device}", "--json", "{answer}")
    ranks = str(layout.num_ranks)
    ring = ("benchmarks/ring.py", *few, "--repeats", "15", "--world-sizes", ranks)
    replicas = ("benchmarks/replicas.py", *few, "--repeats", "15", "--ranks")
    parts = [
        Part(f"ring, {layout.name}", layout, ring, 90),
        # Two ranks that share a GPU show as much as four, and each rank has many models.
        Part(f"replicas, {layout.name}", layout, (*replicas, str(min(layout.num_ranks, 2))), 90)
        if layout.num_gpus == 1
        else Part(f"replicas, {layout.name}", layout, (*replicas, ranks), 90),
    ]
    startup = ("benchmarks/startup.py", *few, "--ranks", ranks, "--repeats")
    parts += [
        Part(f"start, {layout.name}", layout, (*startup, "3", "--only", "start"), 150),
        Part(f"cells, {layout.name}", layout, (*startup, "2", "--only", "cells"), 90),
    ]
    return parts
