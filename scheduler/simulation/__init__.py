"""A network in virtual time: what a pool, a plan and a way of choosing chains would serve.

Standard library only; the same seed gives the same report.
"""
