"""Reports of the leader: statuses of budgets and orders, checkpoints, events, notifications."""
