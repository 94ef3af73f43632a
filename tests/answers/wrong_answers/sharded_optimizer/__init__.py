"""
Answers to the tasks of 13_sharded_optimizer.
"""
