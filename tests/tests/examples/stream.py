"""Streams a recording through Triton's Python clients, as the pieces of a sequence, and prints what each was answered:
over HTTP, over gRPC, and over a stream of gRPC, on which no piece waits for the answer to the one before.

    stream.py ADDRESS FILE
"""

import json
import queue
import sys
from pathlib import Path

import numpy as np
import tritonclient.grpc as grpc
import tritonclient.http as http

MODEL = "voice-activity"
PIECE = 40_001


def parts(triton, content, sequence):
    """The arguments of each request."""
    pieces = [content[at : at + PIECE] for at in range(0, len(content), PIECE)]
    for at, piece in enumerate(pieces):
        audio = triton.InferInput("audio", [1], "BYTES")
        audio.set_data_from_numpy(np.array([piece], dtype=object))
        last = at == len(pieces) - 1
        yield MODEL, [audio], {"sequence_id": sequence, "sequence_start": at == 0, "sequence_end": last}


def one_by_one(triton, client, content, sequence, refused):
    segments = []
    for model, inputs, part in parts(triton, content, sequence):
        segments.extend(client.infer(model, inputs, **part).as_numpy("segments").tolist())
    try:
        client.infer(model, inputs, sequence_id=sequence)
        raise AssertionError("a sequence that has ended goes on")
    except triton.InferenceServerException as error:
        assert error.status() == refused and "sequence_end" in error.message(), error
    return segments


def all_at_once(client, content, sequence):
    answers = queue.Queue()
    client.start_stream(callback=lambda result, error: answers.put((result, error)))
    sent = 0
    for model, inputs, part in parts(grpc, content, sequence):
        client.async_stream_infer(model, inputs, **part)
        sent += 1
    segments = []
    for _ in range(sent):
        result, error = answers.get(timeout=120)
        assert error is None, error
        segments.extend(result.as_numpy("segments").tolist())
    client.stop_stream()
    return segments


def main():
    content = Path(sys.argv[2]).read_bytes()
    by_http = http.InferenceServerClient(sys.argv[1])
    by_grpc = grpc.InferenceServerClient(sys.argv[1])
    assert "sequence_batching" in by_http.get_model_config(MODEL)
    config = by_grpc.get_model_config(MODEL).config
    assert config.sequence_batching.oldest.max_candidate_sequences == 16, config
    answers = [
        one_by_one(http, by_http, content, 2**64 - 1, "409"),
        one_by_one(grpc, by_grpc, content, "by name", "StatusCode.FAILED_PRECONDITION"),
        all_at_once(by_grpc, content, 7),
    ]
    print(json.dumps(answers))


if __name__ == "__main__":
    main()
