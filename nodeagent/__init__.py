"""What runs on a GPU node: it takes turns between containers on a GPU and tells them of it."""
