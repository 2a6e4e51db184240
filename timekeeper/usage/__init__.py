"""Questions about use: from hours of sessions to answers by team, model, owner and whatever else; pure functions."""
