"""Models asked side by side, and what their tokens say."""
