"""
Exercise 00: a first function on four ranks.
"""

from ddp_lessons.checks.ranks.my_items import my_items

TASKS = (my_items,)
