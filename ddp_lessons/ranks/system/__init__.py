"""
Basics of all other folders of `ranks`: processes, clocks, limits, network and runtime folders.

Every process of the runtime imports these modules. They know nothing of running ranks.
"""
