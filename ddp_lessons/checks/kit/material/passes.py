"""
Parts of a training run that several lessons share, whether they save checkpoints or not.

It does not import `ddp_lessons.checkpoint`: torch's distributed checkpoint takes 0.7 s to import,
on each rank, before the first check of a lesson.
"""


class Killed(BaseException):
    """
    Stop a run at once, as a kill would. No Exception, so that nobody catches it by habit.
    """


def idle_passes(model, inputs):
    """
    Make two passes of a new DDP model, so that none that is watched sends more than gradients.

    DDP orders its buckets anew when its second forward begins, with messages of its own. From three
    ranks on that changes the order in which they are added, and so the last bits: after these
    passes, a run that is resumed has the same buckets in each step as one that goes on.
    """
    for _ in range(2):
        model(inputs).sum().backward()
