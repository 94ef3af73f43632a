"""
What a learner has foretold and solved so far, and how it is told.

    notes          one small file of the learner's: checks, passes, hints, predictions
    predictions    a number before a section's run, and what came out after it
"""

from ddp_lessons.progress.predictions import ok, predict

__all__ = ["ok", "predict"]
