"""
Task 15.4: choose a mesh.

On each rank: `_act`. In the kernel: the rest.
"""

from ddp_lessons.checks.beyond_ddp.cost_models import (
    MISTAKES,
    best_of,
    draw_job,
    fault_of,
    full_job,
    is_close,
    is_full,
    job_of,
    seconds,
    spare_job,
    tempting_job,
    wide_job,
)
from ddp_lessons.checks.kit import Case, Task
from ddp_lessons.pictures import mesh_picture

FIRST = {
    "num_ranks": 16,
    "ranks_per_host": 4,
    "memory_bytes": 40_000_000_000,
    "num_layers": 24,
    "num_heads": 12,
    "num_micro_batches": 10,
    "state_bytes": 120_000_000_000,
    "gradient_bytes": 15_000_000_000,
    "activation_bytes": 18_000_000_000,
    "alone_s": 480.0,
    "inside": [1e-5, 100_000_000_000],
    "between": [2e-4, 10_000_000_000],
}


def _cases(draw):
    yield Case(4, {"job": FIRST}, seed=0)
    for num_ranks, ranks_per_host, fits_from in (
        (64, 8, 8), (32, 4, 8), (16, 8, 4), (8, 8, 1), (64, 4, 16), (8, 4, 64),
    ):  # fmt: skip
        yield Case(1, {"job": draw_job(draw, num_ranks, ranks_per_host, fits_from)})
    for rule in ("heads", "layers"):
        yield Case(1, {"job": tempting_job(draw, rule)})
    for draw_one in (full_job, wide_job, spare_job):
        yield Case(1, {"job": draw_one(draw)})


def _act(context, choose_mesh):
    context.call(choose_mesh, {**context["job"]})


def _judge(case_result):
    job = job_of(case_result.case["job"])
    best = best_of(job)
    for rank, got in enumerate(case_result.results):
        _judge_one(case_result, rank, job, got, best)


def _judge_one(case_result, rank, job, got, best):
    if best is None or got is None:
        if got is not None:
            fact = "It returns a mesh, and none is possible."
            raise case_result.wrong(_impossible(job, got), rank, got=got, fact=fact)
        if best is not None:
            fact = "It returns None, and there are meshes that are possible."
            raise case_result.wrong("none", rank, expected=best[0], fact=fact)
        return
    if not _is_mesh(got):
        fact = "It must return four numbers: three sizes, and the seconds."
        raise case_result.wrong("no-mesh", rank, got=got, fact=fact)
    *mesh, told = got
    fault = fault_of(job, *mesh)
    if fault:
        raise case_result.wrong(fault[0], rank, got=got, fact=fault[1])
    right = seconds(job, mesh)
    if not is_close(told, right):
        wrong = [name for name in MISTAKES if is_close(told, seconds(job, mesh, name))]
        fact = f"On {_words(mesh)} a step takes {right:.6g} s."
        raise case_result.wrong(_name(wrong, "values"), rank, got=got, fact=fact)
    if right > best[1] and not is_close(right, best[1]):
        raise _slower(case_result, rank, job, got, best)


def _slower(case_result, rank, job, got, best):
    mesh = tuple(got[:3])
    wrong = [name for name in MISTAKES if _would_choose(job, mesh, name)]
    fact = f"On {_words(mesh)} a step takes {got[3]:.6g} s; there is a mesh with {best[1]:.6g} s."
    otherwise = "full" if is_full(job, best[0]) else "slower"
    return case_result.wrong(_name(wrong, otherwise), rank, got=got, fact=fact)


def _would_choose(job, mesh, forgets):
    # The answer's seconds are right, so the mistake must give the right ones for this mesh.
    found, reckoned = best_of(job, forgets)
    return found == mesh and is_close(reckoned, seconds(job, mesh))


def _name(forgotten, otherwise):
    # An answer that goes by an axis's size takes far ranks for near ones: the same hint fits.
    found = forgotten[0] if forgotten else otherwise
    found = "all-inside" if found.endswith("-by-size") else found
    return "no-latency" if found == "latency-once" else found


def _impossible(job, got):
    fault = fault_of(job, *got[:3]) if _is_mesh(got) else None
    return fault[0] if fault else "no-mesh"


def _is_mesh(got):
    if not isinstance(got, list | tuple) or len(got) != 4:
        return False
    are_sizes = all(type(size) is int and size >= 1 for size in got[:3])
    return are_sizes and isinstance(got[3], int | float) and not isinstance(got[3], bool)


def _words(mesh):
    return " x ".join(str(size) for size in mesh)


def _draw(case_result):
    job, (data, tensor, pipeline, _) = case_result.case["job"], case_result.results[0]
    hosts = [f"host {rank // job['ranks_per_host']}" for rank in range(job["num_ranks"])]
    return mesh_picture({"data": data, "pipeline": pipeline, "tensor": tensor}, hosts)


choose_mesh = Task(
    number="15.4",
    name="choose_mesh",
    cases=_cases,
    act=_act,
    judge=_judge,
    ok="it fits, no other is faster, and its seconds are foretold",
    draw=_draw,
    twice=True,
    hints=(
        "There are few meshes. Try each, leave out what is not possible, and keep the fastest.",
        "For each number that is sent ask: is it shared by the ranks of an axis? Activations are "
        "by the data axis, gradients by the other two.",
        "An axis leaves its host if the ranks from the first to the last of a line are more than a "
        "host has. Neighbours are t ranks, a line of the pipeline spans t p, one of the data axis "
        "all.",
        "bytes of a micro-batch = activation_bytes / (d * M); of gradients = gradient_bytes / "
        "(t * p); calls of the tensor axis = 4 * num_layers / p * M.",
    ),
    mistakes={
        "no-mesh": "Return data, tensor, pipeline and seconds, in this order: three ints and a "
        "number.",
        "none": "Only if nothing fits the answer is None. Look again which meshes you leave out: a "
        "layer may be cut over more ranks than a host has.",
        "product": "The three sizes multiplied are the ranks: all of them take part.",
        "heads": "A rank has whole heads: tensor must divide num_heads.",
        "layers": "A stage has whole layers: pipeline must divide num_layers.",
        "memory": "The ranks of the data axis hold copies. Only the other two axes share the "
        "state out.",
        "full": "A state that takes all of the memory, to the last byte, fits.",
        "bubble": "With a pipeline compute takes longer: at its ends stages are idle.",
        "compute-whole": "All ranks share the compute.",
        "activations-of-all": "Each place on the data axis has its own samples: activations are "
        "shared out over it.",
        "micro-batches": "What is sent is a micro-batch's, not a whole batch's.",
        "calls-of-all-layers": "A stage has some of the layers only.",
        "calls-once": "The layers' all-reduces are made for each micro-batch.",
        "half-the-calls": "A layer makes four all-reduces: backward makes as many as forward.",
        "gradients-whole": "A rank has gradients for its part of the model only.",
        "one-message": "Activations go forward, and their gradients come back.",
        "pipe-of-one": "One stage has nobody to send to.",
        "all-between": "A line that stays in its host has the link inside.",
        "all-inside": "Some lines leave their host. The ranks of a line need not be neighbours: "
        "how far apart are the first and the last, of the pipeline's and of the data axis's?",
        "no-latency": "Every message and every round of a ring costs the latency, too.",
        "bytes-once": "An all-reduce is 2 (k - 1) rounds, each of a k-th of the bytes.",
        "slowest-only": "Nothing is hidden behind anything: the parts add up.",
        "slower": "There is a faster mesh that is possible. Did you try all of them?",
        "forbidden": "Reckon it, and send nothing.",
        "raised": "The line that is named is yours. There may be no mesh that is possible.",
        "values": "Print the four parts of a step, and compare each with the text.",
    },
    allowed=(),
    must_return=False,
)
