"""The owner's side of a node: limits, rules, pauses, and what the machine is seen to do."""
