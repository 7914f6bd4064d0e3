# SPDX-License-Identifier: Apache-2.0
"""Decode steps of a small model beside busy neighbours: as many threads as cores must not be slower than one.
Usage: bench_neighbours.py [MODEL] [--neighbours 0 2] [--threads 1 2] [--mode sparse_w8a8] [--tokens 256] [--rounds 5]"""
import argparse
import multiprocessing
import os
import pathlib
import statistics
import time

import dsakit


def spin():
    while True:
        pass


def rate(model, mode, text, tokens):
    """Tokens per second of a session that steps."""
    session = model.session(mode)
    session.prefill(text)
    start = time.perf_counter()
    for i in range(tokens):
        session.step(text[i % len(text)])
    return tokens / (time.perf_counter() - start)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("model", nargs="?", default=str(pathlib.Path(dsakit.__file__).parent / "models" / "tiny-dsa"))
    parser.add_argument("--neighbours", type=int, nargs="+", default=[0, os.cpu_count()])
    parser.add_argument("--threads", type=int, nargs="+", default=[1, os.cpu_count()])
    parser.add_argument("--mode", default="sparse_w8a8")
    parser.add_argument("--tokens", type=int, default=256)
    parser.add_argument("--rounds", type=int, default=5)
    args = parser.parse_args()
    model = dsakit.Model(args.model)
    text = list(pathlib.Path(__file__).read_bytes()[:512])
    print(f"{os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}, {args.mode}, {args.tokens} steps after {len(text)}")
    print("neighbours  threads  tokens per second (median, least, most)")
    for count in args.neighbours:
        busy = [multiprocessing.Process(target=spin, daemon=True) for _ in range(count)]
        for process in busy:
            process.start()
        rates = {threads: [] for threads in args.threads}
        for _ in range(args.rounds):  # turn about, so that a change of the machine meets all
            for threads in args.threads:
                dsakit.set_num_threads(threads)
                rates[threads].append(rate(model, args.mode, text, args.tokens))
        for process in busy:
            process.kill()
            process.join()
        for threads, found in rates.items():
            print(f"{count:10} {threads:8} {statistics.median(found):9.0f} {min(found):9.0f} {max(found):9.0f}")


if __name__ == "__main__":
    main()
