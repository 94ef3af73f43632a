"""
What tasks are made of: numbers and tolerances, small models and runs, messages and their rounds.
"""
