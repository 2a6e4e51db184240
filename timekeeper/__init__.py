"""The ledger of GPU time, the budgets it is spent from, and the REST API that answers for both.

Where neither a name nor a docstring says otherwise, an amount is whole microGPU-seconds, a rate is microGPU-seconds a
second, and an instant or a stretch of time is whole nanoseconds, an instant since 1970.
"""
