"""
The rules of a notebook: of its source, its words, its outputs and its rhythm. Nothing runs here.
"""

from ddp_lessons.course.rules.all_rules import findings, refuse, uncompared

__all__ = ["findings", "refuse", "uncompared"]
