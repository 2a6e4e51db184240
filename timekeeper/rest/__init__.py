"""The timekeeper's REST API: budgets and figures out, grants and reports in, states to whoever waits for them."""
