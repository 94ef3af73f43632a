"""
Answers to task 16.1.
"""

from bank import Answer

from wrong_answers.frameworks.sources import ACCELERATE, FABRIC, altered, of_fabric

_PREPARED = "    replica, optimizer = accelerator.prepare(model, optimizer)\n"
_OWN_LOADER = "    loader = DataLoader(dataset, batch_size=2, sampler=sampler)\n"
_SAVE = "    if accelerator.is_main_process:\n        torch.save(model.state_dict(), path)\n"

PLAIN = (
    ACCELERATE.partition("def ported")[0]
    + """\
from torch.nn.parallel import DistributedDataParallel


def ported(model, dataset, every, path):
    replica = DistributedDataParallel(model)
    optimizer = torch.optim.SGD(replica.parameters(), lr=0.3, momentum=0.9)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 2, 0.5)
    sampler = DistributedSampler(dataset, seed=3)
    loader = DataLoader(dataset, batch_size=2, sampler=sampler)
    losses = []
    for epoch in range(2):
        sampler.set_epoch(epoch)
        for number, (x, y) in enumerate(loader, start=1):
            ends = number % every == 0
            with nullcontext() if ends else replica.no_sync():
                loss = cross_entropy(replica(x), y)
                (loss / every).backward()
            losses.append(loss.item())
            if ends:
                clip_grad_norm_(replica.parameters(), 0.5)
                optimizer.step()
                optimizer.zero_grad()
                schedule.step()
    if dist.get_rank() == 0:
        torch.save(model.state_dict(), path)
    return losses
"""
)

ANSWERS = [
    altered(
        "16.1",
        "every rank goes through all",
        "samples",
        (_OWN_LOADER, "    loader = DataLoader(dataset, batch_size=2)\n"),
    ),
    altered("16.1", "tells no epoch", "epoch", ("        sampler.set_epoch(epoch)\n", "")),
    of_fabric(
        "16.1",
        "throws the framework's wrapper away, and trains its own",
        "own-ddp",
        (
            "    sampler = Dist",
            "    from torch.nn.parallel import DistributedDataParallel\n"
            "    replica = DistributedDataParallel(model)\n    sampler = Dist",
        ),
        (
            "fabric.no_backward_sync(replica, enabled=not ends)",
            "nullcontext() if ends else replica.no_sync()",
        ),
        ("fabric.backward(loss / every)", "(loss / every).backward()"),
        (
            "fabric.clip_gradients(replica, optimizer, max_norm=0.5)",
            "clip_grad_norm_(model.parameters(), 0.5)",
        ),
    ),
    of_fabric(
        "16.1",
        "clips after each micro-batch",
        "no-clip",
        (
            "                fabric.clip_gradients(replica, optimizer, max_norm=0.5)\n",
            "",
        ),
        (
            "                fabric.backward(loss / every)\n",
            "                fabric.backward(loss / every)\n"
            "            fabric.clip_gradients(replica, optimizer, max_norm=0.5)\n",
        ),
    ),
    altered("16.1", "goes past the wrapper", "not-averaged", ("replica(x)", "model(x)")),
    altered(
        "16.1",
        "divides once more",
        "divided",
        ("accelerator.backward(loss)", "accelerator.backward(loss / every)"),
    ),
    altered(
        "16.1",
        "prepares the schedule",
        "schedule",
        (
            _PREPARED,
            "    replica, optimizer, schedule = accelerator.prepare(model, optimizer, schedule)\n",
        ),
    ),
    altered(
        "16.1",
        "trains a copy",
        "copy",
        (
            "    from accelerate import Accelerator\n",
            "    import copy\n    from accelerate import Accelerator\n"
            "    model = copy.deepcopy(model)\n",
        ),
    ),
    of_fabric(
        "16.1",
        "syncs every micro-batch",
        "synced",
        ("enabled=not ends", "enabled=False"),
    ),
    altered(
        "16.1",
        "saves on every rank",
        "file",
        (_SAVE, "    torch.save(model.state_dict(), path)\n"),
    ),
    of_fabric(
        "16.1",
        "lets rank 0 alone call save",
        "deadlock",
        ("    fabric.save(", "    if fabric.is_global_zero:\n        fabric.save("),
    ),
    altered("16.1", "returns the mean", "no-losses", ("return losses", "return sum(losses)")),
    altered(
        "16.1",
        "returns the mean loss of all ranks",
        "other-losses",
        (
            "losses.append(loss.item())",
            'losses.append(accelerator.reduce(loss.detach(), "mean").item())',
        ),
    ),
    of_fabric(
        "16.1",
        "asks the framework's module for what only DDP has",
        "raised",
        ("fabric.no_backward_sync(replica, enabled=not ends)", "replica.no_such_sync()"),
    ),
    altered("16.1", "has another rate", "values", ("lr=0.3", "lr=0.25")),
    Answer("16.1", "is told by Fabric, loader and all", None, FABRIC),
    altered(
        "16.1",
        "leaves windows to itself",
        None,
        ("Accelerator(cpu=True, gradient_accumulation_steps=every)", "Accelerator(cpu=True)"),
        ("for x, y in loader:", "for number, (x, y) in enumerate(loader, 1):"),
        (
            "with accelerator.accumulate(replica):",
            "with accelerator.no_sync(replica) if number % every else nullcontext():",
        ),
        ("accelerator.backward(loss)", "accelerator.backward(loss / every)"),
        (
            """\
                if accelerator.sync_gradients:
                    accelerator.clip_grad_norm_(replica.parameters(), 0.5)
                optimizer.step()
                optimizer.zero_grad()
            if accelerator.sync_gradients:
                schedule.step()
""",
            """\
            if number % every == 0:
                accelerator.clip_grad_norm_(replica.parameters(), 0.5)
                optimizer.step()
                optimizer.zero_grad()
                schedule.step()
""",
        ),
    ),
    altered(
        "16.1",
        "prepares a schedule that does not count ranks, and unwraps to save",
        None,
        (
            "gradient_accumulation_steps=every)",
            "gradient_accumulation_steps=every, step_scheduler_with_optimizer=False)",
        ),
        (
            _PREPARED,
            "    replica, optimizer, schedule = accelerator.prepare(model, optimizer, schedule)\n",
        ),
        (
            _SAVE,
            "    accelerator.wait_for_everyone()\n"
            "    accelerator.save(accelerator.unwrap_model(replica).state_dict(), path)\n",
        ),
    ),
]
