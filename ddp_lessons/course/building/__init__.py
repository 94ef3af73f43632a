"""
The build of notebooks from text twins, and the verification of their outputs.
"""
