"""Mutation testing: small faults are planted one at a time, and the tests must find them.

    make mutants                            every file of the table in `rooms`: hours
    make mutants MUTANTS="losses journal"   some rooms, or files by a part of their path
    make mutants SAMPLE=20                  at most 20 mutants of every file, drawn by a seed

The changes are those of mutmut (https://mutmut.readthedocs.io) and two more; see `plant`. They are run
here and not by mutmut's own command, because that changes nothing outside of plain functions, and the
thresholds, defaults and properties that decide a merge are outside of them.

What was found is kept in `.mutants/`, so that a run that was stopped goes on, and only what may have
changed is run again.
"""
