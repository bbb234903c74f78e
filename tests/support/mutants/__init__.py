"""Mutation testing: small faults are planted one at a time, and the tests must find them.

    make mutants                            200 faults drawn from core and plugins: an hour or two
    make mutants MUTANTS="losses journal"   from the files whose path has one of these words
    make mutants SAMPLE=20 SEED=7           20 faults, drawn by another seed

The changes are those of mutmut (https://mutmut.readthedocs.io) and two more; see `plant`. They are run
here and not by mutmut's own command, because that changes nothing outside of plain functions, and the
thresholds, defaults and properties that decide a merge are outside of them.

A fault is tried by the test files that reach its lines. Which these are is measured once by running the
tests, and kept in `.mutants/` with the outcomes, so that a run that was stopped goes on.
A survivor is not always a gap in the tests: some changes mean nothing. Whoever reads the list decides.
"""
