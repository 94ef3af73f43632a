"""
The checks of the exercises: they tell right answers from wrong ones by what the ranks do.

    from ddp_lessons.checks import collectives as check, hint

    check.all_reduce()          # runs the learner's function on the ranks; ok line or WrongAnswer
    check.all_reduce.picture()  # what that run did
    hint("02.1")                # the next hint

Each lesson has a folder here, named as the lesson without its number, and each task has a module in
it. `kit` holds the code that all tasks share.
"""

from ddp_lessons.checks.kit.hints import hint

__all__ = ["hint"]
