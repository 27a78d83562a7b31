"""Episodes from worker processes: what they play, how they talk, and who replaces one that died."""
