"""The doors as an OpenAPI document: `GET /openapi.json`.

Written down, not derived: bodies are read field by field (`fields.py`), since unknown fields are
refused by name and errors are OpenAI's. A test holds every property against the readers.
"""
