"""
The messages of the runtime: typed, and with the constants that both ends of a line share.
"""
