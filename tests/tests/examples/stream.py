"""Streams a recording through Triton's Python client, as the pieces of a sequence, and prints what it was answered.

    stream.py ADDRESS FILE
"""

import json
import sys
from pathlib import Path

import numpy as np
import tritonclient.http as triton

PIECE = 10_001


def main():
    client = triton.InferenceServerClient(sys.argv[1])
    assert "sequence_batching" in client.get_model_config("voice-activity")
    content = Path(sys.argv[2]).read_bytes()
    pieces = [content[at : at + PIECE] for at in range(0, len(content), PIECE)]
    segments = []
    for at, piece in enumerate(pieces):
        audio = triton.InferInput("audio", [1], "BYTES")
        audio.set_data_from_numpy(np.array([piece], dtype=object))
        answer = client.infer(
            "voice-activity",
            [audio],
            sequence_id=2**64 - 1,
            sequence_start=at == 0,
            sequence_end=at == len(pieces) - 1,
        )
        segments.extend(answer.as_numpy("segments").tolist())
    try:
        client.infer("voice-activity", [audio], sequence_id=2**64 - 1)
        raise AssertionError("a sequence that has ended goes on")
    except triton.InferenceServerException as error:
        assert error.status() == "409" and "sequence_end" in error.message(), error
    print(json.dumps(segments))


if __name__ == "__main__":
    main()
