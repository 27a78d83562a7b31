"""Replays: recorded episodes, as JSON Lines for programs and a page for people."""
