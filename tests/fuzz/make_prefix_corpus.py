#!/usr/bin/env python3
"""Writes the seeds of fuzz_prefix_file: tests/fuzz/make_prefix_corpus.py tests/fuzz/corpus/prefix_file

A seed's first byte says what the engine is (fuzz_prefix_file.cpp, at its end): odd ones have their checksums made right,
so none is computed here."""
import pathlib
import struct
import sys

BLOCK, STATE, WINDOW = 16, 48, 16
FINGERPRINT = b"fuzz"


def pool(unit, size, window, records):
    return struct.pack("<IIqqq", unit, 0, size, window, records)


def record(number, parent, parts, tokens, has_windows, has_state):
    head = struct.pack("<qqII16s", number, parent, parts, 0, b"salt")
    body = struct.pack("<64i", *tokens) + bytes(4 * BLOCK)
    return head + body + bytes(4 * WINDOW if has_windows else 0) + bytes(STATE if has_state else 0) + bytes(16)


def file(pools, records):
    head = struct.pack("<8sIIIIIIqQQ72x", b"QUIREPFX", 2, 64, 4, len(FINGERPRINT), len(pools), 0, len(records), 7, 8)
    return head + b"".join(pools) + FINGERPRINT + bytes(16) + b"".join(records)


def main():
    to = pathlib.Path(sys.argv[1])
    first, second = list(range(64)), list(range(100, 164))
    kv, state = pool(0, BLOCK, 0, 2), pool(1, STATE, 0, 1)
    blocks = [record(0, -1, 0xF, first, False, False), record(1, 0, 0xF, second, False, False)]
    states = [blocks[0], record(1, 0, 0x1F, second, False, True)]
    both = [record(0, -1, 0x7F, first, True, False), record(1, 0, 0x1F | 0x100 | 0x60, second, True, True)]
    seeds = {
        "empty": bytes([7]) + file([pool(0, BLOCK, 0, 0)], []),
        "plain": bytes([7]) + file([kv], blocks),
        "states": bytes([3]) + file([kv, state], states),
        "unsealed": bytes([2]) + file([kv, state], states),
        "windows": bytes([64 + 7]) + file([kv, pool(0, WINDOW, 40, 2)], [
            record(0, -1, 0x7F, first, True, False), record(1, 0, 0xFF, second, True, False)]),
        "windows_states": bytes([64 + 3]) + file([kv, pool(0, WINDOW, 40, 2), state], both),
    }
    for name, data in seeds.items():
        (to / name).write_bytes(data)


if __name__ == "__main__":
    main()
