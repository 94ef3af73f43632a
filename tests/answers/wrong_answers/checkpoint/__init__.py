"""
Answers to exercise 08, one module for each task.
"""
