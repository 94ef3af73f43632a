"""
The rules about a notebook's source, text, outputs and cell order. They run no cell.
"""

from ddp_lessons.course.rules.all_rules import findings, refuse, uncompared

__all__ = ["findings", "refuse", "uncompared"]
