"""Run the tests as on other machines: with smaller vector units, and with one thread or two.

    python -m tests.support.machines [--cpu avx2 ...] [--threads 1 ...] [PYTEST ARGUMENTS]

Without arguments for pytest the whole suite runs, its files beside each other. A CPU plays all that are less
able than itself, because the libraries that compute look at the environment before they choose their code:
torch's own kernels, oneDNN, MKL, and NumPy's OpenBLAS. Even `torch.randn` draws other last bits.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys

from tests.support.places import ROOT

VARIABLES = ("ATEN_CPU_CAPABILITY", "ONEDNN_MAX_CPU_ISA", "MKL_CBWR", "OPENBLAS_CORETYPE")
# Of the least able first. The least is SSE 4: torch's name for it is `default`.
CPUS = {
    "default": ("default", "SSE41", "COMPATIBLE", "Nehalem"),
    "avx2": ("avx2", "AVX2", "AVX2", "Haswell"),
    "avx512": ("avx512", "AVX512_CORE", "AVX512", "SkylakeX"),
}


def able() -> list[str]:
    """Return the names of the CPUs that this one can play."""
    code = "import torch; print(torch.backends.cpu.get_cpu_capability())"
    env = {name: value for name, value in os.environ.items() if name != VARIABLES[0]}
    best = subprocess.check_output([sys.executable, "-c", code], env=env, text=True).split()[-1]
    names = list(CPUS)
    # An ARM or PowerPC has vector units of other names, and plays itself.
    return names[: names.index(best.lower()) + 1] if best.lower() in names else ["default"]


def main() -> int:
    """Run the tests on every machine that was asked for; print how pytest ended on each."""
    parser = argparse.ArgumentParser(prog="python -m tests.support.machines")
    parser.add_argument("--cpu", action="append", choices=list(CPUS), help="all by default")
    parser.add_argument("--threads", action="append", type=int, help="1 and 2 by default")
    given, arguments = parser.parse_known_args()
    beside = ["-n", str(min(4, os.cpu_count() or 1)), "--dist", "loadfile"]
    can, ends = able(), {}
    for cpu in given.cpu or CPUS:
        for threads in (given.threads or (1, 2)) if cpu in can else ():
            env = {**os.environ, **dict(zip(VARIABLES, CPUS[cpu], strict=True))}
            env |= {"OMP_NUM_THREADS": str(threads), "PYTHONUTF8": "1"}
            # Threads that wait for the next small tensor leave the core to the files of tests beside them.
            env |= {"TOKENIZERS_PARALLELISM": "false", "OMP_WAIT_POLICY": "PASSIVE"}
            command = [sys.executable, "-m", "pytest", *(arguments or beside)]
            print(f"{cpu}, OMP_NUM_THREADS={threads}", flush=True)
            ends[cpu, threads] = subprocess.call(command, cwd=ROOT, env=env)
    for (cpu, threads), code in ends.items():
        print(f"{cpu}, OMP_NUM_THREADS={threads}: {'failed' if code else 'passed'}")
    print(f"not able to play: {', '.join(set(CPUS) - {*can}) or 'none'}")
    return 1 if not ends or any(ends.values()) else 0


if __name__ == "__main__":
    sys.exit(main())
