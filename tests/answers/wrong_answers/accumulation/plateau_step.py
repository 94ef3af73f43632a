"""
Answers to task 07.4.
"""

from bank import Answer

from wrong_answers.accumulation.sources import IMPORTS, altered

ANSWERS = [
    Answer(
        "07.4",
        "goes by each rank's own loss",
        "alone",
        IMPORTS
        + """\
def plateau_step(schedule, total, num_samples):
    mean = total / max(num_samples, 1)
    schedule.step(mean)
    return mean
""",
    ),
    Answer(
        "07.4",
        "takes the mean of means",
        "mean-of-means",
        IMPORTS
        + """\
def plateau_step(schedule, total, num_samples):
    mean = torch.tensor(total / max(num_samples, 1), dtype=torch.float64)
    dist.all_reduce(mean)
    mean = mean.item() / dist.get_world_size()
    schedule.step(mean)
    return mean
""",
    ),
    Answer(
        "07.4",
        "goes by rank 0's loss",
        "one-rank",
        IMPORTS
        + """\
def plateau_step(schedule, total, num_samples):
    mean = torch.tensor(total / max(num_samples, 1), dtype=torch.float64)
    dist.broadcast(mean, 0)
    schedule.step(mean.item())
    return mean.item()
""",
    ),
    Answer(
        "07.4",
        "sends rank 0's rate",
        "rate-only",
        IMPORTS
        + """\
def plateau_step(schedule, total, num_samples):
    mean = total / max(num_samples, 1)
    schedule.step(mean)
    rate = torch.tensor(schedule.optimizer.param_groups[0]["lr"], dtype=torch.float64)
    dist.broadcast(rate, 0)
    schedule.optimizer.param_groups[0]["lr"] = rate.item()
    return mean
""",
    ),
    Answer(
        "07.4",
        "gathers objects",
        "cost",
        IMPORTS
        + """\
def plateau_step(schedule, total, num_samples):
    both = [None] * dist.get_world_size()
    dist.all_gather_object(both, (total, num_samples))
    mean = sum(one for one, _ in both) / sum(one for _, one in both)
    schedule.step(mean)
    return mean
""",
    ),
    altered(
        "07.4",
        "lets only rank 0 step",
        "one-steps",
        ("    schedule.step", "    if dist.get_rank() == 0:\n        schedule.step"),
    ),
    altered(
        "07.4",
        "leaves without samples",
        "deadlock",
        ("    both =", "    if num_samples == 0:\n        return 0.0\n    both ="),
    ),
    altered(
        "07.4",
        "divides by its own number",
        "raised",
        (
            "    both = torch.tensor([total,",
            "    mean = total / num_samples\n    both = torch.tensor([mean * num_samples,",
        ),
    ),
    altered("07.4", "returns nothing", "nothing", ("    return mean\n", "")),
    altered("07.4", "returns both numbers", "no-mean", ("return mean", "return both")),
    altered(
        "07.4",
        "steps twice",
        "stepped-twice",
        ("    schedule.step(mean)\n", "    schedule.step(mean)\n    schedule.step(mean)\n"),
    ),
    Answer(
        "07.4",
        "has a place for each rank",
        "bytes",
        IMPORTS
        + """\
def plateau_step(schedule, total, num_samples):
    table = torch.zeros(dist.get_world_size(), 2, dtype=torch.float64)
    table[dist.get_rank()] = torch.tensor([total, num_samples], dtype=torch.float64)
    dist.all_reduce(table)
    mean = (table[:, 0].sum() / table[:, 1].sum()).item()
    schedule.step(mean)
    return mean
""",
    ),
    altered(
        "07.4", "divides by the ranks too", "values", (".item()", ".item() / dist.get_world_size()")
    ),
    Answer(
        "07.4",
        "gathers",
        None,
        IMPORTS
        + """\
def plateau_step(schedule, total, num_samples):
    own = torch.tensor([total, num_samples], dtype=torch.float64)
    everyone = [torch.empty_like(own) for _ in range(dist.get_world_size())]
    dist.all_gather(everyone, own)
    mean = sum(one[0] for one in everyone) / sum(one[1] for one in everyone)
    schedule.step(mean.item())
    return mean
""",
    ),
    Answer(
        "07.4",
        "uses the package",
        None,
        IMPORTS
        + """\
def plateau_step(schedule, total, num_samples):
    from ddp_lessons.accumulation import global_mean
    mean = global_mean(total, num_samples)
    schedule.step(mean)
    return mean
""",
    ),
    altered("07.4", "counts in float32", None, (", dtype=torch.float64", "")),
    altered("07.4", "sends whole numbers", "rounded", ("[total,", "[int(total),")),
    altered(
        "07.4",
        "makes a group at each call",
        "store",
        ("all_reduce(both", "all_reduce(both, group=dist.new_group()"),
    ),
    altered(
        "07.4",
        "counts one sample where there is none",
        "not-a-mean",
        ("total, num_samples]", "total, max(num_samples, 1)]"),
    ),
    altered(
        "07.4",
        "feeds only what is better",
        "not-stepped",
        ("    schedule.step", "    if mean < schedule.best: schedule.step"),
    ),
    altered(
        "07.4",
        "has less patience",
        "rate",
        ("    schedule.step", "    schedule.patience = 0\n    schedule.step"),
    ),
    altered("07.4", "waits for nothing", "unwaited", ("(both)", "(both, async_op=True)")),
    altered(
        "07.4",
        "asks for the number of samples once",
        "old-count",
        (
            "    both =",
            "    num_samples = vars(schedule).setdefault('num_samples', num_samples)\n    both =",
        ),
    ),
    altered(
        "07.4",
        "returns its own",
        "fed-otherwise",
        ("return mean", "return total / max(num_samples, 1)"),
    ),
    altered(
        "07.4",
        "adds up from call to call",
        "kept",
        (
            "    mean =",
            "    both += vars(schedule).get('all', 0)\n    schedule.all = both\n    mean =",
        ),
    ),
    altered("07.4", "reduces to rank 0", "not-everywhere", ("all_reduce(both", "reduce(both, 0")),
    altered(
        "07.4",
        "returns a tensor of one number",
        None,
        ("mean = (both[0] / both[1]).item()", "mean = both[0] / both[1]"),
    ),
    Answer(
        "07.4",
        "sends a complex number",
        None,
        IMPORTS
        + """\
def plateau_step(schedule, total, num_samples):
    both = torch.view_as_real(torch.tensor(complex(total, num_samples), dtype=torch.complex128))
    dist.all_reduce(both)
    mean = both[0].item() / both[1].item()
    schedule.step(torch.tensor(mean, dtype=torch.float64))
    return mean
""",
    ),
    altered(
        "07.4",
        "leaves out a rank without a loss",
        "worst-rank",
        ("[total, num_samples]", "[total, num_samples if total else 0]"),
    ),
    altered(
        "07.4",
        "adds up in an order of its own",
        "apart",
        (
            "    dist.all_reduce(both)\n",
            "    parts = [torch.empty_like(both) for _ in range(dist.get_world_size())]\n"
            "    dist.all_gather(parts, both)\n"
            "    both = sum(parts[dist.get_rank() :] + parts[: dist.get_rank()])\n",
        ),
    ),
    altered(
        "07.4",
        "takes a loss of nan for none",
        "hidden",
        ("[total, num_samples]", "[total if total == total else 0.0, num_samples]"),
    ),
]
