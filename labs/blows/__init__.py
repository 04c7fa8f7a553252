"""`./x lab fleet`: what becomes of a run on several machines when one of its parts is struck.

`scene` builds a fleet with a server that counts, `blows` strikes it, `check` knows what must be true afterwards, `journal` reads what an
agent has on its disk, `main` is the command.
"""
