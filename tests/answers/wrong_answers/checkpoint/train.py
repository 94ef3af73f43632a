"""
Answers to task 08.3.
"""

from bank import Answer

from wrong_answers.checkpoint.sources import altered, train

_LOOP = "    while run.epoch < num_epochs:\n"

STEP = "            train_step(run, batch)\n"

EPOCH = "        run.epoch += 1\n"


ANSWERS = [
    train("begins from the start", "from-start", ("    saves.load(run)\n", "")),
    train(
        "loads, and begins at epoch 0 all the same",
        "epoch-behind",
        (_LOOP, "    for epoch in range(num_epochs):\n"),
        ("set_epoch(run.epoch)", "set_epoch(epoch)"),
        ("        run.epoch += 1\n", ""),
    ),
    train(
        "begins the saved epoch again",
        "epoch-anew",
        (
            "        run.sampler.set_epoch(run.epoch)\n",
            "        run.sampler.set_epoch(-1)\n        run.sampler.set_epoch(run.epoch)\n",
        ),
    ),
    train(
        "begins an epoch again if nothing is left of it",
        "after-end",
        (
            "        for batch in batches:\n",
            "        if not len(run.sampler):\n"
            "            run.sampler.set_epoch(-1)\n"
            "            run.sampler.set_epoch(run.epoch)\n"
            "        for batch in batches:\n",
        ),
    ),
    train(
        "saves before the step",
        "too-seldom",
        ("            train_step(run, batch)\n", ""),
        ("            if run.step % every == 0:", "            if run.step % every == every - 1:"),
        ("saves.save(run)\n", "saves.save(run)\n            train_step(run, batch)\n"),
    ),
    train(
        "counts the epoch before it runs it",
        "lost",
        (
            "        run.sampler.set_epoch(run.epoch)\n",
            "        run.sampler.set_epoch(run.epoch)\n        run.epoch += 1\n",
        ),
        (
            "                saves.save(run)\n        run.epoch += 1\n",
            "                saves.save(run)\n",
        ),
    ),
    train(
        "never tells the sampler the epoch",
        "alike",
        ("        run.sampler.set_epoch(run.epoch)\n", ""),
    ),
    train(
        "saves after every step",
        "too-often",
        ("            if run.step % every == 0:", "            if True:"),
    ),
    train(
        "saves in a finally",
        "saves-dead",
        (
            "            train_step(run, batch)\n",
            "            try:\n                train_step(run, batch)\n"
            "            except BaseException:\n                saves.save(run)\n"
            "                raise\n",
        ),
    ),
    train(
        "only rank 0 saves",
        "deadlock",
        ("def train", "import torch.distributed as dist\ndef train"),
        ("if run.step % every == 0:", "if run.step % every == 0 and dist.get_rank() == 0:"),
    ),
    Answer(
        "08.3",
        "unusual: a generator of steps, and the sampler's epoch in a for loop",
        None,
        """
def rest(run, batches, num_epochs):
    for run.epoch in range(run.epoch, num_epochs):
        run.sampler.set_epoch(run.epoch)
        yield from batches
    run.epoch = num_epochs
def train(run, batches, train_step, saves, num_epochs, every):
    saves.load(run)
    for batch in rest(run, batches, num_epochs):
        train_step(run, batch)
        if not run.step % every:
            saves.save(run)
""",
    ),
    Answer(
        "08.3",
        "unusual: sharded saves, through the run's own count of epochs",
        None,
        """
def train(run, batches, train_step, saves, num_epochs, every):
    saves.load(run)
    for epoch in run.remaining_epochs(num_epochs):
        run.sampler.set_epoch(epoch)
        for batch in batches:
            train_step(run, batch)
            if run.step % every == 0:
                saves.save_sharded(run)
""",
    ),
    altered("08.3", "counts steps, too", "counted", (STEP, STEP + "            run.step += 1\n")),
    altered(
        "08.3",
        "loads before each epoch",
        "loads-again",
        ("        run.sampler.set", "        saves.load(run)\n        run.sampler.set"),
    ),
    altered("08.3", "makes each step twice", "twice", (STEP, STEP + STEP)),
    altered("08.3", "counts epochs from 1", "other-epoch", ("(run.epoch)", "(run.epoch + 1)")),
    altered(
        "08.3",
        "makes all epochs once more after a kill",
        "num-epochs",
        ("    while run.epoch < num_epochs:", "    for _ in range(num_epochs):"),
    ),
    altered("08.3", "makes a list of batches", "ahead", ("in batches:", "in list(batches):")),
    altered(
        "08.3",
        "unusual: a save more when all is done",
        None,
        (EPOCH, EPOCH + "    saves.save(run)\n"),
    ),
]
