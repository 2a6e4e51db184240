"""The dialects in which a manifest can request a piece of a GPU, one module each."""
