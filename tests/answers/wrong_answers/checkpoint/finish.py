"""
Answers to task 08.5.
"""

from bank import Answer

from wrong_answers.checkpoint.sources import altered, finish

OPTIMIZE = "        run.optimizer.step()\n        run.optimizer.zero_grad()\n"

SHARD = "        if run.step % every == 0:\n            saves.save_sharded(run)\n"

ANSWERS = [
    finish(
        "goes on world_size times too far, and syncs each micro-batch",
        "steps",
        ("batches[run.step :]", "batches[run.step * world_size :]"),
        ("contextlib.nullcontext() if last else run.model.no_sync()", "contextlib.nullcontext()"),
    ),
    finish("wants as many ranks as before", "raised", ("run, exact=False", "run")),
    finish(
        "syncs each micro-batch",
        "cost",
        ("contextlib.nullcontext() if last else run.model.no_sync()", "contextlib.nullcontext()"),
    ),
    finish("does not divide", "undivided", ("(loss / len(parts)).backward()", "loss.backward()")),
    finish(
        "empties the gradient before the step",
        "gradient",
        (OPTIMIZE, "        run.optimizer.zero_grad()\n        run.optimizer.step()\n"),
    ),
    finish("every rank takes the whole batch", "share", ("batch[rank::world_size]", "batch")),
    finish("one large forward", "memory", (".split(micro_batch)", ".split(len(batch))")),
    finish("rank 0 writes all alone", "whole-file", ("save_sharded", "save")),
    finish(
        "saves before it counts",
        "count",
        ("        run.step += 1\n", ""),
        (
            "            saves.save_sharded(run)\n",
            "            saves.save_sharded(run)\n        run.step += 1\n",
        ),
    ),
    finish(
        "saves at the end only",
        "save-steps",
        ("        if run.step % every == 0:\n            saves", "    if True:\n            saves"),
    ),
    finish(
        "loads into another optimizer",
        "restored",
        ("import contextlib\n", "import contextlib, torch\n"),
        ("    rank, world", "    run.optimizer.state.clear()\n    rank, world"),
    ),
    finish(
        "only rank 0 saves",
        "deadlock",
        ("if run.step % every == 0:", "if run.step % every == 0 and rank == 0:"),
    ),
    finish(
        "saves when it dies",
        "other-run",
        (
            "                loss = cross_entropy(run.model(images[part]), labels[part])\n",
            "                try:\n"
            "                    loss = cross_entropy(run.model(images[part]), labels[part])\n"
            "                except BaseException:\n"
            "                    saves.save_sharded(run)\n"
            "                    raise\n",
        ),
    ),
    Answer(
        "08.5",
        "unusual: blocks of the batch, a sum over its length, the sync switched by a flag",
        None,
        """
import torch
import torch.distributed as dist
def finish(run, saves, images, labels, batches, micro_batch, every):
    saves.load(run, exact=False)
    rank, world_size = dist.get_rank(), dist.get_world_size()
    criterion = torch.nn.CrossEntropyLoss(reduction="sum")
    while run.step < len(batches):
        run.optimizer.zero_grad(set_to_none=False)
        mine = batches[run.step].chunk(world_size)[rank]
        for start in range(0, len(mine), micro_batch):
            part = mine[start : start + micro_batch]
            run.model.require_backward_grad_sync = start + micro_batch >= len(mine)
            criterion(run.model(images[part]), labels[part]).div(len(mine)).backward()
        run.optimizer.step()
        run.step += 1
        if not run.step % every:
            saves.save_sharded(run)
""",
    ),
    altered("08.5", "unusual: saves in the background", None, ("save_sharded", "save_async")),
    altered(
        "08.5",
        "unusual: averages all gradients as one tensor by itself",
        None,
        ("import contextlib\n", "import contextlib, torch\n"),
        ("contextlib.nullcontext() if last else ", ""),
        (
            OPTIMIZE,
            "        weights = list(run.model.parameters())\n"
            "        flat = torch.cat([p.grad.flatten() for p in weights]) / world_size\n"
            "        dist.all_reduce(flat)\n"
            "        for p, part in zip(weights, flat.split([p.numel() for p in weights])):\n"
            "            p.grad = part.view_as(p)\n" + OPTIMIZE,
        ),
    ),
    altered(
        "08.5",
        "unusual: a barrier at the start, and a save more at the end",
        None,
        ("    rank, world_size", "    dist.barrier()\n    rank, world_size"),
        (SHARD, SHARD + "    saves.save_sharded(run)\n"),
    ),
    altered(
        "08.5",
        "throws away the batches that are done",
        "input-changed",
        (
            "    for batch in batches[run.step :]:",
            "    del batches[: run.step]\n    for batch in batches:",
        ),
    ),
]
