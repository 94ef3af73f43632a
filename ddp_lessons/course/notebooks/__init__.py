"""
notebooks
"""
