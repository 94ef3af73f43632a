"""
The learner's predictions, solved tasks and files: how they are stored, sent and renewed.

    state          the learner's state, one small file: how it is read and changed
    row_fields     the fields of a task's row and of a prediction's row
    notes          records of checks, passes, hints and predictions, with times
    predictions    a number before a section's run, and the outcome after it
    join           join the class board, and leave it
    board_client   the address of the board, and requests to it
    sending        send the state to the board, in the background
    renewal        replace a file that the learner has not edited by its new version
"""

from ddp_lessons.progress.join import join_board, leave_board
from ddp_lessons.progress.predictions import ok, predict

__all__ = ["join_board", "leave_board", "ok", "predict"]
