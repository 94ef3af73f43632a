"""
Exercise 08: the state that must be saved so that nothing is lost.

Legend: w ranks; a tensor of n rows of which rank r holds some; step s is made when s - 1 steps are
done.
"""

from ddp_lessons.checks.checkpoint.capture import capture
from ddp_lessons.checks.checkpoint.finish import finish
from ddp_lessons.checks.checkpoint.reshard import reshard
from ddp_lessons.checks.checkpoint.save import save
from ddp_lessons.checks.checkpoint.train import train

TASKS = (
    save,
    capture,
    train,
    reshard,
    finish,
)
