"""
Exercise 15: what if the model does not fit?
"""

from ddp_lessons.checks.beyond_ddp.stage_row import stage_row

TASKS = (stage_row,)
