"""Who runs the jobs: one process at a time, in numbered terms, so that what an old one still writes can be refused."""
