"""
rank
"""
