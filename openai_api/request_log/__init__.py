"""The request log as people use it: search, pages, export, retention, and who looked at texts."""
