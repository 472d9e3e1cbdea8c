"""The Python package's own answer for a WAV file: its code and its model, as `cargo xtask setup` fetched them.

The package computes with torch, of which it needs very little here, and which is a thousand times its size. So its code
runs unchanged on a stand-in of numpy arrays; that gives the same segments as torch itself (tried with 1.13.1).

    target/setup/venv/bin/python examples/02-voice-activity/reference.py FILE...

prints a line of JSON for each file: its name, its segments and its sample rate.
"""

import json
import sys
import types
import warnings
import wave
from pathlib import Path

import numpy as np

SETUP = Path(__file__).parents[2] / "target/setup"


class Tensor(np.ndarray):
    """What the package calls on a tensor beside what an array has."""

    def dim(self):
        return self.ndim

    def float(self):
        return self.astype(np.float32)

    def unsqueeze(self, axis):
        return np.expand_dims(self, axis)

    def numpy(self):
        return np.asarray(self)


def tensor(array):
    return np.asarray(array, dtype=np.float32).view(Tensor)


def stand_in():
    """A module that passes for torch."""
    torch = types.ModuleType("torch")
    torch.Tensor = Tensor
    torch.is_tensor = lambda value: isinstance(value, Tensor)
    torch.zeros = lambda *shape: tensor(np.zeros(shape[0] if isinstance(shape[0], tuple) else shape))
    torch.cat = lambda tensors, dim: tensor(np.concatenate(tensors, axis=dim))
    torch.from_numpy = tensor
    torch.device = str
    torch.no_grad = lambda: lambda function: function
    pad = lambda chunk, ends: tensor(np.pad(chunk, ends))
    torch.nn = types.SimpleNamespace(functional=types.SimpleNamespace(pad=pad))
    return torch


def package():
    """`silero_vad.utils_vad`."""
    if "torch" not in sys.modules:
        sys.modules["torch"] = stand_in()
    sys.path.insert(0, str(SETUP / "silero-vad"))
    from silero_vad import utils_vad

    return utils_vad


def read(path):
    """Samples from -1 to 1 and their rate; channels become their mean, as the package's `read_audio` has it."""
    with wave.open(str(path)) as file:
        assert file.getsampwidth() == 2, path
        samples = np.frombuffer(file.readframes(file.getnframes()), dtype="<i2").astype(np.float32) / 32768
        mean = samples.reshape(-1, file.getnchannels()).mean(axis=1, dtype=np.float32)
        return mean, file.getframerate()


def segments(path):
    """Segments as [first sample, one after the last], and the file's rate."""
    utils = package()
    torch = sys.modules["torch"]
    model = utils.OnnxWrapper(str(SETUP / "silero-vad/silero_vad.onnx"), force_onnx_cpu=True)
    samples, rate = read(path)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = utils.get_speech_timestamps(torch.from_numpy(samples), model, sampling_rate=rate)
    return [[segment["start"], segment["end"]] for segment in found], rate


if __name__ == "__main__":
    for name in sys.argv[1:]:
        found, rate = segments(name)
        print(json.dumps({"file": name, "segments": found, "sample_rate": rate}))
