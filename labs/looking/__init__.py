"""What people look at: pages of `lastdrop report` in headless Chromium without a network, and the live view on real terminals.

`pages` has the runs that become pages, `made` those that would take an hour or a hundred machines, `terminals` the commands that are
watched, `browser` is Chromium, `look` holds a page against what it has to be, and `main` is the command. Places, servers and
rows are those of `faults`.
"""
