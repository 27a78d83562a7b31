"""The HTTP client of rewards, evaluations and status messages.

`client` sends a request under one deadline. `requests` checks URLs and tokens, and retries. It does not import
httpcore, so that a config can be validated without it.
"""
