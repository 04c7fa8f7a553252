"""The lab of the doctor: real servers with one thing wrong, each with what the doctor has to say about it.

`place` is where a set-up lives, `apache`, `nginx`, `php`, `python`, `node`, `haproxy`, `database` and `peers` are what
stands there, `fault` is what a fault is, `limits_*`, `wastes`, `risks`, `healthy` and `pairs` are the faults,
`measure` proves that one is real, `doctor` asks the doctor, `rows` keeps and counts the answers, `main` is the command.
"""
