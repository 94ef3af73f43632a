"""
What runs inside a rank while an answer is tried. `playing` is what the kernel calls there.

`seen` notes what the answer did, `surroundings` gives it a world of the case's size, `is_simulated`
plays worlds that are larger than the one that runs. `lent`, `plain` and `replacing` tell what it
changed, kept or put in torch's place. `orders` lets each rank have its own order of a set.
"""
