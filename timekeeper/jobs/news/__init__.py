"""What is told of budgets and orders: statuses, events, notifications, series."""
