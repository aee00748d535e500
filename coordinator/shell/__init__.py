"""The coordinator's shell: sockets, processes, files and clocks around the deterministic core.

Owns the loop that feeds the core, the control service, the solver process, the journal and the
server ports. Must never import gateway or dashboard; `coordinator.main` introduces them.
"""
