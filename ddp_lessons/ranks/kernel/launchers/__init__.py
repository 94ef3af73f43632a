"""
Ranks under launchers that have a life of their own: what each needs beyond what all share.
"""
