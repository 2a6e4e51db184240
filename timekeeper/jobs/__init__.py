"""What the one leading timekeeper does again and again: watch, meter, settle, publish, release, write down.

`round/keeper.py` is the round, `memory/` what it works with, and `service.py` the process around it.
"""
