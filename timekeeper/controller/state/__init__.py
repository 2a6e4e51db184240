"""The leader's state in memory: accounts, sessions and the figures that follow from them."""
