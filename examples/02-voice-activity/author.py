#!/usr/bin/env python3
"""Makes the acceptance cases from the Python package's own answers.

Run it when recordings are added or silero-vad changes, after `cargo xtask setup`:

    target/setup/venv/bin/python examples/02-voice-activity/author.py

What it writes is committed, so that a device needs no Python.
"""

import json
from pathlib import Path

import reference

HERE = Path(__file__).parent
SPEECH = reference.SETUP / "speech"
RECORDINGS = ["sense_and_sensibility-0870.wav", "sense_and_sensibility-0930.wav", "004.wav"]


def case(recording):
    """One acceptance case, as docs/package.md has it."""
    segments, rate = reference.segments(SPEECH / recording)
    shape = [len(segments), 2]
    file = f"recordings/{recording}"
    return {
        "name": recording.removesuffix(".wav"),
        "inputs": [{"name": "audio", "datatype": "BYTES", "shape": [1], "file": file}],
        "outputs": [
            {"name": "segments", "datatype": "INT64", "shape": shape, "data": segments},
            {"name": "sample_rate", "datatype": "INT64", "shape": [1], "data": [rate]},
        ],
    }


def main():
    for recording in RECORDINGS:
        made = case(recording)
        path = HERE / "cases" / f"{made['name'].rsplit('-')[-1]}.json"
        path.write_text(json.dumps(made) + "\n")
        print(path.name, made["outputs"][0]["data"])


if __name__ == "__main__":
    main()
