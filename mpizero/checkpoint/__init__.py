"""Checkpoints: what training has come to, in files that know no ranks, no stage and no wrapping.

[Note: files] D/latest names the newest complete checkpoint's folder. D/step-00000020 holds, for each rank that wrote,
part-0000.bin (numbers, little-endian, one piece of a parameter's state after the other) and part-0000.json (which
pieces these are, and a CRC-32 for each MiB); and checkpoint.json, written last: step, scale, settings, parameters, and
the SHA-256 of each part's table. It makes the checkpoint complete. Each JSON file begins with a SHA-256 of its rest.
A piece is a range of elements, begin .. end - 1, or columns, as tensor parallel ranks have them: `run` elements, again
each `stride` elements, up to `end`.
"""
