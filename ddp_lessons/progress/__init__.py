"""
What a learner has foretold and solved so far, how it is told, and to whom it is sent.

    state          one small file of the learner's: how it is read and changed
    rows           what is known of a task and of a prediction
    notes          checks, passes, hints, predictions, and when
    predictions    a number before a section's run, and what came out after it
    joining        go onto the class board, and off it
    membership     where the board is, and how to talk to it
    sending        send the state to it, in the background
"""

from ddp_lessons.progress.join import join_board, leave_board
from ddp_lessons.progress.predictions import ok, predict

__all__ = ["join_board", "leave_board", "ok", "predict"]
