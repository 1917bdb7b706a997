"""Each function of the compiled library that writes past the cache prefetches what it reads, for the two wait
for the same few buffers of a core (kernels/host/blocks.h): without it some kernels have two fifths of their
speed, which no test of results sees. Not so keep_range, which copies what other functions made.

usage: prefetch_test.py REPOSITORY BUILD
"""

import pathlib
import re
import shutil
import subprocess
import sys

COPIES = "keep_range"
FUNCTION = re.compile(r"[0-9a-f]+ <(.+)>:\n")
STREAMS, PREFETCHES = re.compile(r"\tv?movnt(?!dqa)"), "\tprefetch"

SAMPLE = """0000 <streams_alone>:
   0:\tvmovntps %zmm0,(%rax)
0010 <streams>:
  10:\tprefetcht0 0x800(%rax)
  18:\tvmovntdq %ymm0,(%rax)
0020 <_Z10keep_range>:
  20:\tmovntdq %xmm0,(%rax)
0030 <loads>:
  30:\tmovntdqa (%rax),%xmm0
"""


def functions(listing):
    """(those that stream, those that do so without prefetching), by name."""
    streaming, without = set(), set()
    parts = FUNCTION.split(listing)
    for name, body in zip(parts[1::2], parts[2::2], strict=True):
        if STREAMS.search(body):
            streaming.add(name)
            if PREFETCHES not in body and COPIES not in name:
                without.add(name)
    return streaming, without


def main():
    build = pathlib.Path(sys.argv[2])
    assert functions(SAMPLE) == ({"streams_alone", "streams", "_Z10keep_range"}, {"streams_alone"})
    objects = sorted(build.glob("kernels/c/CMakeFiles/outgrad_c_avx*.dir/*.o"))
    if not objects or shutil.which("objdump") is None:
        print("SKIPPED: no library for AVX2 and AVX-512, or no objdump to read it with")
        return 77
    failed = False
    for one in objects:
        listing = subprocess.run(["objdump", "-d", "--no-show-raw-insn", one], capture_output=True, text=True,
                                 check=True).stdout
        streaming, without = functions(listing)
        print(f"{one.relative_to(build)}: {len(streaming)} functions stream")
        for name in sorted(without):
            print(f"  it does not prefetch: {name}")
        failed = failed or without or len(streaming) < 50
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
