"""HTTP as everything in Hookline speaks it: one client, one deadline for a whole request, one way of trying again.

`client` sends, `connections` holds the deadline, `retries` says when to send again, `address` reads URLs and tokens.
Only `client` and `connections` import httpcore, so that checking a config needs none of it.
"""
