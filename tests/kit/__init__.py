"""Test kit: waiting on conditions, and whole networks as real processes."""
