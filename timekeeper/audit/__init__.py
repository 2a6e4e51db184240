"""Recomputes what the books say from what they rest on, and names every figure that differs.

Written apart from the code that settles: nothing here calls it, so that a mistake there is not repeated here.
"""
