"""Makes the files that the test `file_type` asks about, in the folder given, and prints, as JSON by
file name, what the Python package magika says of each: [label, score].

Everything is generated here or is a file of this repository.
"""

import bz2
import csv
import gzip
import io
import json
import lzma
import random
import sqlite3
import struct
import sys
import tarfile
import wave
import zipfile
import zlib
from pathlib import Path

import magika
import numpy
import onnx
from onnx import TensorProto, helper

SPACES = b" \t\r\n\x0b\x0c"


def edges():
    """Sizes and bytes at which the rules for short files change."""
    noise = random.Random(20261127)
    yield "empty", b""
    yield "one-byte", b"a"
    yield "one-nul", b"\0"
    yield "seven-bytes", b"#!/bin/"
    yield "seven-not-utf8", b"\x7fELF\xff\xfe\x01"
    yield "eight-bytes", b"#!/bin/s"
    yield "short-umlaut", "Größe".encode()
    yield "short-surrogate", b"\xed\xa0\x80abc"
    yield "nul-bytes", bytes(64)
    yield "spaces-only", SPACES * 3
    yield "spaces-then-few", b"\n" * 40 + b"few"
    yield "spaces-then-eight", b"\n" * 40 + b"print(1)"
    yield "spaces-beyond-a-block", b" " * 5000 + b"import os\nprint(os.getcwd())\n"
    yield "spaces-cut-a-character", b" " * 4094 + "größer".encode()
    yield "spaces-cut-inside-a-character", b" " * 4095 + "ößer".encode()
    yield "vertical-tabs", b"\x0b\x0bimport os\nprint(os.getcwd())\n\x0b\x0b"
    yield "trailing-spaces", b"import os\nprint(os.getcwd())\n" + b" " * 6000
    yield "exactly-a-block", (b"SELECT name FROM looms WHERE width > 60;\n" * 128)[:4096]
    yield "a-block-and-one", (b"SELECT name FROM looms WHERE width > 60;\n" * 128)[:4097]
    yield "noise", noise.randbytes(9000)
    yield "noise-short", noise.randbytes(32)
    yield "noise-text", "".join(noise.choice("abcdefghijklmnopqrstuvwxyz \n") for _ in range(5000)).encode()
    yield "unsure", b"let x = 3;\nlet y = x + 4;\n"
    yield "unsure-too", b"x = 1\ny = 2\nprint x\n"
    yield "words", b"Dear all,\nthe warp is on the loom, and the weft is dyed.\n"


def chunk(kind, data):
    """A chunk of a PNG."""
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def pictures_and_sounds():
    """Small ones, by hand."""
    pixels = b"".join(b"\0" + bytes((x * y) % 256 for x in range(96)) for y in range(32))
    png = b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", struct.pack(">IIBBBBB", 32, 32, 8, 2, 0, 0, 0))
    png += chunk(b"IDAT", zlib.compress(pixels)) + chunk(b"IEND", b"")
    yield "twill.png", png
    body = bytes((x * 7 + y) % 256 for y in range(32) for x in range(96))
    yield "twill.bmp", struct.pack("<2sIHHIIiiHHIIiiII", b"BM", 54 + len(body), 0, 0, 54, 40, 32, 32, 1, 24, 0, len(body), 2835, 2835, 0, 0) + body
    yield "twill.ico", struct.pack("<HHHBBBBHHII", 0, 1, 1, 32, 32, 0, 0, 1, 32, len(png), 22) + png
    palette = bytes(value for index in range(4) for value in (index * 60,) * 3)
    gif = b"GIF89a" + struct.pack("<HHBBB", 8, 8, 0x91, 0, 0) + palette
    yield "twill.gif", gif + b"\x2c" + struct.pack("<HHHHB", 0, 0, 8, 8, 0) + b"\x02\x0a\x84\x8f\xa9\xcb\xed\x0f\xa3\x9c\xb4\x00\x00\x3b"
    sound = io.BytesIO()
    with wave.open(sound, "wb") as out:
        out.setnchannels(1)
        out.setsampwidth(2)
        out.setframerate(8000)
        tone = (numpy.sin(numpy.arange(4000) / 5) * 9000).astype("<i2")
        out.writeframes(tone.tobytes())
    yield "tone.wav", sound.getvalue()
    yield "twill.svg", b'<?xml version="1.0"?>\n<svg xmlns="http://www.w3.org/2000/svg" width="40" height="40">\n' + b"".join(
        b'  <rect x="%d" y="%d" width="3" height="3" fill="#224466"/>\n' % (x, (x * 7) % 40) for x in range(0, 40, 4)
    ) + b"</svg>\n"


def archives(folder):
    """Packed and structured files."""
    text = (b"The selvedge keeps the cloth from unravelling.\n" * 60)
    yield "notes.gz", gzip.compress(text, mtime=0)
    yield "notes.bz2", bz2.compress(text)
    yield "notes.xz", lzma.compress(text)
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as held:
        for number in range(4):
            held.writestr(zipfile.ZipInfo(f"notes/{number}.txt", (2026, 1, 1, 0, 0, 0)), text)
    yield "notes.zip", packed.getvalue()
    held = io.BytesIO()
    with tarfile.open(fileobj=held, mode="w") as tar:
        for number in range(3):
            info = tarfile.TarInfo(f"notes/{number}.txt")
            info.size = len(text)
            tar.addfile(info, io.BytesIO(text))
    yield "notes.tar", held.getvalue()
    path = folder / ".database"
    base = sqlite3.connect(path)
    base.execute("create table looms (name text, width integer)")
    base.executemany("insert into looms values (?, ?)", [(f"loom {n}", n * 10) for n in range(200)])
    base.commit()
    base.close()
    yield "looms.sqlite", path.read_bytes()
    path.unlink()
    arrays = io.BytesIO()
    numpy.save(arrays, numpy.arange(500, dtype="<f4"))
    yield "warp.npy", arrays.getvalue()
    graph = helper.make_graph(
        [helper.make_node("Add", ["x", "x"], ["y"])],
        "twice",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [2, 3])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [2, 3])],
    )
    yield "twice.onnx", helper.make_model(graph).SerializeToString()
    yield "page.pdf", (
        b"%PDF-1.4\n1 0 obj\n<< /Type /Catalog /Pages 2 0 R >>\nendobj\n2 0 obj\n<< /Type /Pages /Kids [] /Count 0 >>\nendobj\n"
        b"xref\n0 3\n0000000000 65535 f \n0000000009 00000 n \n0000000058 00000 n \ntrailer\n<< /Size 3 /Root 1 0 R >>\nstartxref\n112\n%%EOF\n"
    )


def texts():
    """Programming and markup languages."""
    yield "weave.c", b'#include <stdio.h>\n#include <stdlib.h>\n\nstruct loom { int shafts; double width; };\n\nint main(int argc, char **argv) {\n    struct loom *loom = malloc(sizeof *loom);\n    if (!loom) return 1;\n    loom->shafts = argc;\n    printf("%d shafts\\n", loom->shafts);\n    free(loom);\n    return 0;\n}\n'
    yield "weave.cpp", b'#include <iostream>\n#include <vector>\n\nnamespace weave {\ntemplate <typename T> class Warp {\npublic:\n    void add(T end) { ends.push_back(end); }\n    std::size_t size() const { return ends.size(); }\nprivate:\n    std::vector<T> ends;\n};\n}\n\nint main() {\n    weave::Warp<int> warp;\n    for (auto i = 0; i < 8; ++i) warp.add(i);\n    std::cout << warp.size() << std::endl;\n}\n'
    yield "weave.js", b"'use strict';\n\nconst looms = require('./looms');\n\nfunction widest(list) {\n  return list.reduce((best, loom) => (loom.width > best.width ? loom : best));\n}\n\nmodule.exports = { widest };\nconsole.log(widest(looms.all()));\n"
    yield "weave.go", b'package main\n\nimport (\n\t"fmt"\n\t"os"\n)\n\ntype Loom struct {\n\tShafts int\n\tName   string\n}\n\nfunc main() {\n\tlooms := []Loom{{4, "counterbalance"}, {8, "jack"}}\n\tfor _, loom := range looms {\n\t\tfmt.Fprintln(os.Stdout, loom.Name, loom.Shafts)\n\t}\n}\n'
    yield "weave.java", b"package org.example.weave;\n\nimport java.util.List;\n\npublic final class Loom {\n    private final int shafts;\n\n    public Loom(int shafts) {\n        this.shafts = shafts;\n    }\n\n    public static void main(String[] args) {\n        for (String arg : List.of(args)) {\n            System.out.println(arg);\n        }\n    }\n}\n"
    yield "weave.css", b"body {\n  font-family: sans-serif;\n  margin: 0 auto;\n}\n\n.loom > .warp:hover {\n  color: #246;\n  background: url(twill.png) repeat-x;\n}\n\n@media (max-width: 600px) {\n  .loom { display: none; }\n}\n"
    yield "weave.html", b"<!DOCTYPE html>\n<html>\n<head><title>Looms</title><style>body { margin: 2em }</style></head>\n<body>\n<div class=\"a\"><h1>Looms</h1><p>Two of <a href=\"/x\">them</a></p></div>\n<script>document.title = 'Looms';</script>\n</body>\n</html>\n"
    yield "weave.xml", b'<?xml version="1.0" encoding="UTF-8"?>\n<looms>\n  <loom name="jack" shafts="8"><width unit="cm">90</width></loom>\n  <loom name="dobby" shafts="16"><width unit="cm">100</width></loom>\n</looms>\n'
    yield "weave.json", json.dumps({"looms": [{"name": f"loom {n}", "width": n * 10, "warped": n % 2 == 0} for n in range(12)]}, indent=2).encode()
    yield "weave.yaml", b"looms:\n  - name: jack\n    shafts: 8\n    warped: true\n  - name: dobby\n    shafts: 16\n    warped: false\nworkshop:\n  open: [mon, tue, wed]\n  city: Krefeld\n"
    yield "weave.ini", b"[loom]\nname = jack\nshafts = 8\n\n[workshop]\ncity = Krefeld\n; closed on Sundays\nopen = yes\n"
    yield "weave.sql", b"CREATE TABLE looms (id INTEGER PRIMARY KEY, name TEXT NOT NULL, width INTEGER);\nINSERT INTO looms (name, width) VALUES ('jack', 90), ('dobby', 100);\nSELECT name, width FROM looms WHERE width > 60 ORDER BY name;\n"
    yield "weave.sh", b'#!/bin/sh\nset -eu\nfor loom in "$@"; do\n    if [ -d "$loom" ]; then\n        echo "warping $loom"\n        find "$loom" -name "*.wif" -exec cp {} /tmp \\;\n    fi\ndone\n'
    yield "weave.bat", b"@echo off\r\nsetlocal\r\nset LOOM=jack\r\nif not exist %LOOM% (\r\n  mkdir %LOOM%\r\n)\r\nfor %%f in (*.wif) do copy %%f %LOOM%\r\nendlocal\r\n"
    yield "weave.diff", b"--- a/loom.py\n+++ b/loom.py\n@@ -1,4 +1,4 @@\n import sys\n \n-print(sys.argv)\n+print(sys.argv[1:])\n # end\n"
    yield "weave.tex", b"\\documentclass{article}\n\\usepackage{graphicx}\n\\begin{document}\n\\section{Looms}\nA loom has $n$ shafts, and $2^n - 2$ treadlings.\n\\begin{itemize}\n\\item jack\n\\item dobby\n\\end{itemize}\n\\end{document}\n"
    table = io.StringIO()
    csv.writer(table).writerows([["loom", "shafts", "width"]] + [[f"loom {n}", n, n * 10] for n in range(30)])
    yield "weave.csv", table.getvalue().encode()
    yield "utf16.txt", "Die Webkante hält das Gewebe zusammen.\n".encode("utf-16") * 3


def own(root):
    """Files of this repository, and programs that were built from it."""
    for name in ["README.md", "Cargo.toml", "Cargo.lock", "xtask/src/main.rs", "host/wit/model.wit",
                 "examples/01-file-type/author.py", "target/modules/direct.wasm", "target/setup/magika/config.min.json"]:
        yield "own-" + name.replace("/", "-"), (root / name).read_bytes()
    yield "own-library.so", (root / "target/setup/onnxruntime/libonnxruntime.so").read_bytes()[: 1 << 20]
    yield "own-model.onnx", (root / "target/setup/magika/model.onnx").read_bytes()


def main():
    """Writes the files and prints the answers."""
    folder, root = Path(sys.argv[1]), Path(sys.argv[2])
    model = magika.Magika()
    answers = {}
    for source in (edges(), pictures_and_sounds(), archives(folder), texts(), own(root)):
        for name, content in source:
            (folder / name).write_bytes(content)
            found = model.identify_bytes(content).prediction
            answers[name] = [str(found.output.label), found.score]
    json.dump(answers, sys.stdout)


if __name__ == "__main__":
    main()
