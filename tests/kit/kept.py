"""Imported last by the process that tests' processes are forked from: what was imported before is
shared with them for good, and none of them looks through it for garbage."""

from plait.cli.settled import keep_imports

keep_imports()
