"""Genuine servers, each as root's, a service's, in containers, and an ordinary user's, asked by two programs.

The rules about rights must not make lastdrop tell less about a server that is what it seems to be. `servers` has the
servers, `owners` who runs them and where, `documents` what two documents have in common, `main` the command.
"""
