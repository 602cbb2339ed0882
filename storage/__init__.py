"""Objects that clients store on this server: files, uploads, batches, and vector stores with their search.

Start with `files` and `vector_stores`; `ingestion` is the job that reads files into a store.
"""
