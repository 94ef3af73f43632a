"""
Answers to exercise 03, one module for each task.
"""
