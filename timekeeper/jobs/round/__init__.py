"""One round of the leading timekeeper: what is due, what was ordered, balances, settlements, and telling readers."""
