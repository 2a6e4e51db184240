"""Reports of the leader: statuses, checkpoints, events, notifications, metrics."""
