#!/usr/bin/env python3
"""Makes the binary samples and, from the Python package's own answers, the acceptance cases.

Run it when samples are added or magika changes, after `cargo xtask setup`:

    target/setup/venv/bin/python examples/01-file-type/author.py

What it writes is committed, so that neither the demo nor a device needs Python.
"""

import io
import json
import math
import struct
import zipfile
import zlib
from pathlib import Path

import magika

HERE = Path(__file__).parent
SAMPLES = HERE / "samples"
CASES = HERE / "cases"


def png(width, height):
    """A small picture of a twill, in RGB."""
    dark, light = b"\x22\x33\x66", b"\xee\xe8\xdd"
    rows = b"".join(
        b"\0" + b"".join(dark if (x + y) // 3 % 2 else light for x in range(width))
        for y in range(height)
    )

    def chunk(kind, data):
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return (
        b"\x89PNG\r\n\x1a\n"
        + chunk(b"IHDR", header)
        + chunk(b"IDAT", zlib.compress(rows, 9))
        + chunk(b"IEND", b"")
    )


def pdf(lines):
    """A page of text."""
    text = "".join(f"({line}) Tj T* " for line in lines)
    content = f"BT /F1 12 Tf 14 TL 72 760 Td {text}ET".encode()
    objects = [
        b"<< /Type /Catalog /Pages 2 0 R >>",
        b"<< /Type /Pages /Kids [3 0 R] /Count 1 >>",
        b"<< /Type /Page /Parent 2 0 R /MediaBox [0 0 595 842] /Contents 4 0 R"
        b" /Resources << /Font << /F1 5 0 R >> >> >>",
        b"<< /Length %d >>\nstream\n%s\nendstream" % (len(content), content),
        b"<< /Type /Font /Subtype /Type1 /BaseFont /Helvetica >>",
    ]
    out = io.BytesIO()
    out.write(b"%PDF-1.4\n%\xe2\xe3\xcf\xd3\n")
    places = []
    for number, body in enumerate(objects, 1):
        places.append(out.tell())
        out.write(b"%d 0 obj\n%s\nendobj\n" % (number, body))
    table = out.tell()
    out.write(b"xref\n0 %d\n0000000000 65535 f \n" % (len(objects) + 1))
    for place in places:
        out.write(b"%010d 00000 n \n" % place)
    out.write(b"trailer\n<< /Size %d /Root 1 0 R >>\nstartxref\n%d\n%%%%EOF\n" % (len(objects) + 1, table))
    return out.getvalue()


def archive(names):
    """A zip file of other samples, the same every time."""
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as held:
        for name in names:
            info = zipfile.ZipInfo(name, (2026, 1, 1, 0, 0, 0))
            info.compress_type = zipfile.ZIP_DEFLATED
            held.writestr(info, (SAMPLES / name).read_bytes())
    return out.getvalue()


def case(name, sample, answer):
    """One acceptance case, as docs/package.md has it."""
    score = answer.score
    assert math.isfinite(score)
    return {
        "name": name,
        "inputs": [
            {"name": "content", "datatype": "BYTES", "shape": [1], "file": f"samples/{sample}"}
        ],
        "outputs": [
            {"name": "label", "datatype": "BYTES", "shape": [1], "data": [str(answer.output.label)]},
            {"name": "score", "datatype": "FP32", "shape": [1], "data": [round(score, 7)]},
        ],
    }


def main():
    """Writes samples, then cases."""
    SAMPLES.mkdir(exist_ok=True)
    CASES.mkdir(exist_ok=True)
    lines = ["Report of the workshop", "Four looms, two of them warped.", "Nothing unravelled."]
    (SAMPLES / "report.pdf").write_bytes(pdf(lines))
    (SAMPLES / "picture.png").write_bytes(png(48, 48))
    (SAMPLES / "things.zip").write_bytes(archive(["notes.md", "shuffle.py", "table.csv"]))
    (SAMPLES / "broken.bin").write_bytes(b"\xff\xfe\xfd")
    model = magika.Magika()
    for sample in sorted(SAMPLES.iterdir()):
        found = model.identify_bytes(sample.read_bytes()).prediction
        name = sample.stem
        text = json.dumps(case(name, sample.name, found))
        (CASES / f"{name}.json").write_text(text + "\n")
        print(f"{sample.name:12} {sample.stat().st_size:6} bytes  {found.output.label:8} {found.score:.6f}")


if __name__ == "__main__":
    main()
