"""Wrong input in great numbers: each case is known by seed, subject and number alone, and runs in a fork.

`python -m tests.support.fuzz --minutes 60` prints one table. What a case must never do: end in an error that
emberge did not foresee, run for more than 20 s, take 2 GB of memory, change a file outside its own folders,
start a program, call another machine, or leave a model that cannot be opened.
"""
