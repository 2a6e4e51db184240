"""The ledger of GPU time, the budgets that pay for it, and the REST API that answers for both.

Where neither a name nor a docstring states another unit, an amount is whole microGPU-seconds, a rate is
microGPU-seconds a second, a duration is whole nanoseconds, and an instant is whole nanoseconds since 1970.
"""
