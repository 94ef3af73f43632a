"""
The learner's commands (lab, exercises, progress), and in the rooms how notebooks are made and held.
"""
