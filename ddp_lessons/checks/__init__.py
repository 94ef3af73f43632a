"""
Tell right answers to the exercises from wrong ones, by what the ranks do.

    from ddp_lessons.checks import collectives as check, hint

    check.all_reduce()          # runs the learner's function on the ranks; ok line or WrongAnswer
    check.all_reduce.picture()  # what that run did
    hint("02.1")                # the next hint

A folder a lesson, by the lesson's stem, and in it a module a task; `kit` is what they share.
"""

from ddp_lessons.checks.kit.hints import hint

__all__ = ["hint"]
