"""Import and export of profiles: our own JSON both ways, and the files of other tools in.

Start with ``imports``: ``documents`` parses a file, one module per format interprets it, and ``imports`` creates all
drafts or none.
"""
