"""Shared by all tests. In CI the property tests draw the same examples every time, so that a change
is judged by what it changes; at a desk they search on."""

import os

from hypothesis import settings

settings.register_profile("ci", derandomize=True)
if os.environ.get("CI"):
    settings.load_profile("ci")
