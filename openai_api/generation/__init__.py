"""From a validated request to generated text: target model and profile, prompt, sampling, events, chunks.

Start at ``run.py``; ``chat_chunks.py`` and ``completion_chunks.py`` turn engine events into API chunks.
"""
