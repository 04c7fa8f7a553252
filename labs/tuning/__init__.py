"""Tunes of real servers whose best settings are known: each set-up has a grid of settings, all of which were measured once.

`setups` has the servers, `grid` measures and reads grids, `score` says how near a tune came to the best of its grid, and
`main` is the command. Places, servers and rows are those of `faults`.
"""
