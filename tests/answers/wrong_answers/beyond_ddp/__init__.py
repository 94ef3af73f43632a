"""
Answers to the tasks of 15_beyond_ddp.
"""
