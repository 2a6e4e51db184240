"""What a budget is and what it decides: money, prices, periods, grants, states. Pure functions on frozen values."""
