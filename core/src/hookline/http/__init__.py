"""HTTP as everything in Hookline speaks it: one client, one deadline for a whole request, one way of trying again.

`client` sends, within a deadline; `requests` says when to send again, and reads URLs, tokens and Retry-After. Only
`client` imports httpcore, so that checking a config needs none of it.
"""
