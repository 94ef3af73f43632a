"""
Make notebooks of their text, run them in processes that never outlive us, and compare outputs.
"""
