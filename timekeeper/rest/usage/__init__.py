"""Questions about use: read from a request (`query`), answered from the store and from files (`finding`), and told."""
