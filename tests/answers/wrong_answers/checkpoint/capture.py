"""
Answers to task 08.2.
"""

from bank import Answer

from wrong_answers.checkpoint.sources import altered, capture

KEEP = "KEPT = {}\ndef capture(run):\n"

ANSWERS = [
    Answer(
        "08.2",
        "weights only",
        "weights-only",
        """
def capture(run):
    return run.model.state_dict()
def restore(run, state):
    run.model.load_state_dict(state)
""",
    ),
    capture(
        "forgets the optimizer",
        "optimizer",
        ('    run.optimizer.load_state_dict(state["optimizer"])\n', ""),
    ),
    capture(
        "forgets the schedule",
        "schedule",
        ('    run.scheduler.load_state_dict(state["scheduler"])\n', ""),
    ),
    capture(
        "forgets the place in the epoch",
        "place",
        ('    run.sampler.load_state_dict(state["sampler"])\n', ""),
    ),
    capture("forgets the step", "step", ('    run.step = state["step"]\n', "")),
    capture(
        "forgets Python's random numbers",
        "factors",
        ('    random.setstate(state["random"])\n', ""),
    ),
    capture("forgets the noise", "noise", ('    torch.set_rng_state(state["rng"])\n', "")),
    capture(
        "rank 0's Python random numbers for all",
        "other-rank",
        ("import torch\n", "import torch, torch.distributed as dist\n"),
        (
            "    return {",
            "    states = [random.getstate()]\n"
            "    dist.broadcast_object_list(states, src=0)\n"
            "    return {",
        ),
        ("random.getstate(),", "states[0],"),
    ),
    capture("saves the optimizer itself", "code", ("run.optimizer.state_dict()", "run.optimizer")),
    capture(
        "draws a number to remember the noise by",
        "capture-changes",
        ("torch.get_rng_state()", "torch.randn(1)"),
        ('torch.set_rng_state(state["rng"])', "pass"),
    ),
    capture(
        "restore has another name", "missing", ("def restore(", "restore = None\n\n\ndef put_back(")
    ),
    capture("a key is misspelt", "raised", ('state["scheduler"]', 'state["schedule"]')),
    capture(
        "forgets to restore the weights",
        "weights",
        ('    run.model.load_state_dict(state["model"])\n', ""),
    ),
    capture(
        "makes a new optimizer, which the schedule does not know",
        "new-object",
        (
            "    run.optimizer.load",
            "    run.optimizer = torch.optim.SGD(run.model.parameters(), lr=0.1)\n"
            "    run.optimizer.load",
        ),
    ),
    Answer(
        "08.2",
        "unusual: a list over the ranks, gathered, and parts by name",
        None,
        """
import random, torch, torch.distributed as dist
NAMES = ["sampler", "scheduler", "optimizer", "model"]
def capture(run):
    rngs = [None] * dist.get_world_size()
    dist.all_gather_object(rngs, (torch.random.get_rng_state(), random.getstate()))
    own = [getattr(run, name).state_dict() for name in NAMES]
    return [rngs, run.step, run.epoch, *own]
def restore(run, state):
    rngs, run.step, run.epoch, *own = state
    for name, part in zip(NAMES, own):
        getattr(run, name).load_state_dict(part)
    rng, factors = rngs[dist.get_rank()]
    torch.random.set_rng_state(rng)
    random.setstate(factors)
""",
    ),
    Answer(
        "08.2",
        "unusual: the library's own",
        None,
        "from ddp_lessons.checkpoint import capture, restore\n",
    ),
    altered(
        "08.2",
        "keeps the random numbers in the process",
        "elsewhere",
        ("def capture(run):\n", KEEP + "    KEPT['rng'] = torch.get_rng_state()\n"),
        ('        "rng": torch.get_rng_state(),\n', ""),
        ('state["rng"]', "KEPT['rng']"),
    ),
    altered(
        "08.2",
        "takes parameters for the model",
        "buffers",
        ("run.model.state_dict()", "[p.detach() for p in run.model.parameters()]"),
        (
            'run.model.load_state_dict(state["model"])',
            '[p.data.copy_(q) for p, q in zip(run.model.parameters(), state["model"])]',
        ),
    ),
    altered(
        "08.2",
        "restores into eval mode",
        "mode",
        ("    run.epoch =", "    run.model.eval()\n    run.epoch ="),
    ),
    altered(
        "08.2",
        "restores rank 0 only",
        "deadlock",
        ("import torch\n", "import torch, torch.distributed as dist\n"),
        ("    run.model.load", "    if dist.get_rank(): return\n    run.model.load"),
    ),
    altered(
        "08.2",
        "never goes back",
        "untouched",
        ("    run.model.load", "    if state['step'] < run.step: return\n    run.model.load"),
    ),
    altered(
        "08.2",
        "sets the factor of momentum anew",
        "other-end",
        (
            "    run.scheduler.load",
            "    run.optimizer.param_groups[0].update(momentum=0.5, betas=(0.5, 0.9))\n"
            "    run.scheduler.load",
        ),
    ),
    altered(
        "08.2",
        "unusual: a new optimizer, and a schedule that was made with it",
        None,
        (
            "    run.optimizer.load",
            "    optimizer = type(run.optimizer)(run.model.parameters(), lr=1.0)\n"
            "    run.optimizer, run.scheduler = optimizer, None\n"
            "    run.optimizer.load",
        ),
        (
            "    run.scheduler.load",
            "    run.scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1)\n"
            "    run.scheduler.load",
        ),
    ),
    Answer(
        "08.2",
        "unusual: torch's functions for distributed states, and of the schedule one number",
        None,
        """
import random, torch
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
def capture(run):
    model, optimizer = get_state_dict(run.model, run.optimizer)
    rest = [run.scheduler.last_epoch, run.sampler.state_dict(), run.epoch, run.step]
    rngs = {"rng": torch.get_rng_state(), "factors": list(random.getstate())}
    return {"all": [model, optimizer, rest], **rngs}
def restore(run, state):
    model, optimizer, rest = state["all"]
    parts = {"model_state_dict": model, "optim_state_dict": optimizer}
    set_state_dict(run.model, run.optimizer, **parts)
    run.scheduler.last_epoch, place, run.epoch, run.step = rest
    run.sampler.load_state_dict(place)
    torch.set_rng_state(state["rng"])
    random.setstate(tuple(state["factors"]))
""",
    ),
    altered(
        "08.2",
        "unusual: the bare model, random numbers as a list",
        None,
        ("run.model.", "run.model.module."),
        ("torch.get_rng_state()", "torch.get_rng_state().tolist()"),
        ('state["rng"]', 'torch.tensor(state["rng"], dtype=torch.uint8)'),
    ),
]
