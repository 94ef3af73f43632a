"""
Answers to exercise 15, one module for each task.
"""
