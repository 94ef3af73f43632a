"""
Answers to task 12.4.
"""

from bank import Answer

from wrong_answers.metrics.sources import IMPORTS, altered

REDUCE = "    dist.all_reduce(sums)\n"
LOSS = "    loss = (sums[0] / sums[1]).item()\n"
BETTER = 'loss < notes["best"] - notes["min_delta"]'
RETURN = '    return notes["bad_epochs"] >= notes["patience"] or sums[2].item() > 0\n'

ANSWERS = [
    altered(
        "12.4",
        "divides numbers of Python's",
        "raised",
        (LOSS, "    loss = sums[0].item() / sums[1].item()\n"),
    ),
    altered(
        "12.4",
        "does not talk",
        "alone",
        (REDUCE, ""),
        (LOSS, "    loss = total / max(num_samples, 1)\n"),
    ),
    altered(
        "12.4",
        "takes the mean of means",
        "mean-of-means",
        ("[total, num_samples,", "[total / max(num_samples, 1), 1,"),
    ),
    altered("12.4", "goes by the sum", "not-a-mean", (LOSS, "    loss = sums[0].item()\n")),
    altered(
        "12.4",
        "goes by rank 0",
        "one-rank",
        (REDUCE, "    dist.broadcast(sums, 0)\n"),
    ),
    altered("12.4", "forgets min_delta", "min-delta", (' - notes["min_delta"]', "")),
    altered("12.4", "waits one epoch more", "patience", (">= notes", "> notes")),
    altered(
        "12.4",
        "takes nan for better",
        "nan",
        (f"if {BETTER}:", 'if not loss >= notes["best"] - notes["min_delta"]:'),
    ),
    altered(
        "12.4",
        "keeps the lowest of all",
        "best",
        (
            LOSS,
            LOSS + '    is_better = loss < notes["best"] - notes["min_delta"]\n'
            '    if loss < notes["best"]: notes["best"] = loss\n',
        ),
        (f"if {BETTER}", "if is_better"),
    ),
    altered("12.4", "forgets the time", "time", (" or sums[2].item() > 0", "")),
    altered(
        "12.4",
        "returns a number",
        "not-bool",
        (RETURN, RETURN.replace("return ", "return 1 * (").rstrip() + ")\n"),
    ),
    altered("12.4", "returns nothing", "nothing", (RETURN, "")),
    altered(
        "12.4",
        "leaves when its time is up",
        "deadlock",
        ("    own = [total,", "    if time_is_up: return True\n    own = [total,"),
    ),
    altered(
        "12.4",
        "makes three collectives",
        "cost",
        (REDUCE, "    for one in sums: dist.all_reduce(one)\n"),
    ),
    Answer(
        "12.4",
        "gathers, in float32",
        None,
        IMPORTS
        + """\
def should_stop(notes, total, num_samples, time_is_up):
    own = torch.tensor([time_is_up, num_samples, total], dtype=torch.float32)
    everyone = torch.empty(dist.get_world_size() * 3)
    dist.all_gather_into_tensor(everyone, own)
    wishes, samples, totals = everyone.double().view(-1, 3).sum(0).tolist()
    mean = totals / samples if samples else float("nan")
    is_better = notes["best"] - mean > notes["min_delta"]
    notes.update(
        best=mean if is_better else notes["best"],
        bad_epochs=0 if is_better else notes["bad_epochs"] + 1,
    )
    return bool(wishes) or not notes["bad_epochs"] < notes["patience"]
""",
    ),
    altered(
        "12.4",
        "keeps a tensor for the best",
        None,
        ('notes["best"] = loss', 'notes["best"] = torch.tensor(loss, dtype=torch.float64)'),
        (RETURN, RETURN.replace("return ", "return bool(").rstrip() + ")\n"),
    ),
    altered(
        "12.4",
        "begins its sum with its own part",
        "not-alike",
        (
            REDUCE,
            "    parts = [torch.empty_like(sums) for _ in range(dist.get_world_size())]\n"
            "    dist.all_gather(parts, sums)\n"
            "    rest = [p for r, p in enumerate(parts) if r != dist.get_rank()]\n"
            "    sums = sum(rest, sums)\n",
        ),
    ),
    altered(
        "12.4",
        "leaves before it notes when time is up",
        "values",
        ("    if loss < notes", "    if sums[2] > 0: return True\n    if loss < notes"),
    ),
]
