"""What the one leading timekeeper does again and again: watch, meter, settle, publish, release, write down.

`keeper.py` is the round and `service.py` the process around it.
"""
