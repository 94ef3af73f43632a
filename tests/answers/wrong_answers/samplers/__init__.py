"""
Answers to exercise 04, one module for each task.
"""
