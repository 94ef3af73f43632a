"""
Answers to exercise 02, one module for each task.
"""
