"""POST /v1/logit_lens and /v1/attribution: what each layer predicts, and which features led to a token.

Both start with the residuals of one text (``text.py``). ``graph.py`` writes circuit-tracer's JSON.
"""
