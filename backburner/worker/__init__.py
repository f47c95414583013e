"""The worker process: a page store with a budget, and the server that answers for it."""
