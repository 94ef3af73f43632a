"""
Exercise 17: when do more machines help?

Legend: w ranks on h hosts; a tensor of B bytes.
"""

from ddp_lessons.checks.many_machines.choose_remedy import choose_remedy
from ddp_lessons.checks.many_machines.hierarchical_mean import hierarchical_mean

TASKS = (
    hierarchical_mean,
    choose_remedy,
)
