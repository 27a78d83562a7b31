"""Replays: recorded episodes, as JSON Lines and as an HTML page."""
