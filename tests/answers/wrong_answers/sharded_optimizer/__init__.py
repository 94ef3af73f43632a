"""
Answers to exercise 13, one module for each task.
"""
