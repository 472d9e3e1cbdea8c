"""Makes the recordings that the test `voice_activity` asks about, in the folder given, out of those that set-up fetched,
and prints, as JSON by file name, what the Python package finds in each: its segments and its sample rate.

Beside each recording as it is there are half of them one after another with pauses, and that at other sample rates, with
two channels, with a head that does not know its length, and what is no speech at all.
"""

import json
import struct
import sys
import wave
from pathlib import Path

import numpy as np

ROOT = Path(sys.argv[2])
sys.path.insert(0, str(ROOT / "examples/02-voice-activity"))

import reference  # noqa: E402


def write(path, samples, rate, channels=1):
    with wave.open(str(path), "wb") as file:
        file.setnchannels(channels)
        file.setsampwidth(2)
        file.setframerate(rate)
        file.writeframes(np.asarray(samples, dtype="<i2").tobytes())


def main():
    folder = Path(sys.argv[1])
    random = np.random.default_rng(7)
    every = []
    for path in sorted((ROOT / "target/setup/speech").glob("*.wav")):
        (folder / path.name).write_bytes(path.read_bytes())
        with wave.open(str(path)) as file:
            assert file.getframerate() == 16000 and file.getnchannels() == 1, path
            every.append(np.frombuffer(file.readframes(file.getnframes()), dtype="<i2"))
    assert len(every) >= 10, len(every)
    pause = random.normal(0, 40, 24_000).astype("<i2")
    long = np.concatenate([part for samples in every[::2] for part in (samples, pause)])
    write(folder / "long.wav", long, 16000)
    write(folder / "long-8000.wav", long[::2], 8000)
    # What is left out is not silence, so that another choice of samples would be heard.
    noisy = np.stack([long, random.normal(0, 8000, len(long)), random.normal(0, 8000, len(long))], axis=1)
    write(folder / "long-48000.wav", noisy.reshape(-1), 48000)
    write(folder / "long-two.wav", np.stack([long, np.roll(long, 7)], axis=1).reshape(-1), 16000, 2)
    write(folder / "noise.wav", random.normal(0, 2000, 80_000), 16000)
    write(folder / "silence.wav", np.zeros(50_001), 16000)
    write(folder / "one-sample.wav", np.ones(1), 16000)
    write(folder / "empty.wav", [], 16000)
    # As one that is made while it is sent; Python's reader wants a length.
    answers = {path.name: reference.segments(path) for path in sorted(folder.glob("*.wav"))}
    bytes_ = bytearray((folder / "long.wav").read_bytes())
    bytes_[40:44] = struct.pack("<I", 0xFFFFFFFF)
    (folder / "endless.wav").write_bytes(bytes_)
    answers["endless.wav"] = answers["long.wav"]
    json.dump(answers, sys.stdout)


if __name__ == "__main__":
    main()
