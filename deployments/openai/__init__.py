"""The OpenAI-compatible wire format: requests in, answers, streams and errors out.

Pure logic: no Ray and no network, so every byte of it can be tested alone.
"""
