"""
Answers to the exercises, by the stem of the lesson: wrong ones, and right ones nobody expects.
"""
