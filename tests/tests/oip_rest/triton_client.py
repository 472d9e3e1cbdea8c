"""Asks a running host as Triton's own Python client does; prints what it checked, one line each.

Arguments: the host's address without its scheme. Served there: an identity (input x, output y, one free
extent) of every element type under its name in small letters, `raw` (BYTES [1]) among them as `bytes`.
"""

import asyncio
import sys

import ml_dtypes
import numpy as np
import tritonclient.http as http
import tritonclient.http.aio as aio
from tritonclient.utils import InferenceServerException

ADDRESS = sys.argv[1]

TYPES = {
    "BOOL": np.array([True, False, True]),
    "UINT8": np.array([0, 1, 255], np.uint8),
    "UINT16": np.array([0, 1, 65535], np.uint16),
    "UINT32": np.array([0, 1, 2**32 - 1], np.uint32),
    "UINT64": np.array([0, 1, 2**64 - 1], np.uint64),
    "INT8": np.array([-128, 0, 127], np.int8),
    "INT16": np.array([-(2**15), 0, 2**15 - 1], np.int16),
    "INT32": np.array([-(2**31), 0, 2**31 - 1], np.int32),
    "INT64": np.array([-(2**63), 0, 2**63 - 1], np.int64),
    "FP16": np.array([-65504, 5.9604645e-8, np.nan, np.inf], np.float16),
    "BF16": np.array([-256.0, 0.0078125, np.nan, np.inf], ml_dtypes.bfloat16),
    "FP32": np.array([-0.0, 3.4028235e38, np.nan, -np.inf], np.float32),
    "FP64": np.array([-0.0, 1.5e300, np.nan, np.inf], np.float64),
    "BYTES": np.array([b"", "grün".encode(), b"a"], np.object_),
}


def checked(what):
    print(what, flush=True)


def same(sent, came):
    assert came is not None and came.dtype == sent.dtype and came.shape == sent.shape, (sent, came)
    if sent.dtype == np.object_:
        # Out of JSON the client makes text of them.
        came = [element.encode() if isinstance(element, str) else element for element in came]
        assert came == list(sent), (sent, came)
    else:
        # Bit for bit: NaN and the sign of zero too.
        assert came.tobytes() == sent.tobytes(), (sent, came)


def refused(says, ask, *arguments, **named):
    try:
        ask(*arguments, **named)
    except InferenceServerException as error:
        assert says in error.message(), (says, error.message())
        return
    raise AssertionError(f"not refused: {ask.__name__} {arguments} {named}")


def tensor(datatype, data, binary=True, name="x"):
    given = http.InferInput(name, list(data.shape), datatype)
    given.set_data_from_numpy(data, binary_data=binary)
    return given


def metadata(client):
    assert client.is_server_live() and client.is_server_ready()
    assert client.is_model_ready("fp32") and client.is_model_ready("fp32", "1.0.0")
    assert not client.is_model_ready("nobody")
    assert "binary_tensor_data" in client.get_server_metadata()["extensions"]
    for version in ["", "1.0.0"]:
        told = client.get_model_metadata("fp32", version)
        assert told["inputs"] == [{"name": "x", "datatype": "FP32", "shape": [-1]}], told
        config = client.get_model_config("fp32", version)
        assert config["max_batch_size"] == 0 and config["input"][0]["data_type"] == "TYPE_FP32", config
    checked("health, metadata and configuration")


def every_type(client):
    for datatype, whole in TYPES.items():
        for data in [whole, whole[:0], np.resize(whole, 3000)]:
            for out in [None, True, False]:
                for binary in [True, False]:
                    outputs = None if out is None else [http.InferRequestedOutput("y", binary_data=out)]
                    sent = data
                    if not binary or out is False:
                        # The client has no JSON for these types, and writes no NaN that would come back the same.
                        if datatype in ("FP16", "BF16"):
                            continue
                        if datatype in ("FP32", "FP64"):
                            sent = data[np.isfinite(data)]
                    answer = client.infer(datatype.lower(), [tensor(datatype, sent, binary)], outputs=outputs)
                    same(sent, answer.as_numpy("y"))
        checked(f"{datatype}: both ways")


def what_goes_with_it(client):
    data = TYPES["FP32"]
    answer = client.infer("fp32", [tensor("FP32", data)], request_id="seven", timeout=60_000_000,
                          model_version="1.0.0", parameters={"mine": 1})
    told = answer.get_response()
    assert told["id"] == "seven" and told["model_version"] == "1.0.0", told
    assert told["parameters"]["selvedge_package"].startswith("sha256:"), told
    same(data, answer.as_numpy("y"))
    checked("id, version, timeout and parameters")


def compressed(client):
    data = np.arange(20_000, dtype=np.float32)
    for request in [None, "gzip", "deflate"]:
        for response in [None, "gzip", "deflate"]:
            for binary in [True, False]:
                answer = client.infer("fp32", [tensor("FP32", data, binary)],
                                      outputs=[http.InferRequestedOutput("y", binary_data=binary)],
                                      request_compression_algorithm=request,
                                      response_compression_algorithm=response)
                same(data, answer.as_numpy("y"))
    checked("gzip and deflate, both ways")


def several_at_once():
    with http.InferenceServerClient(ADDRESS, concurrency=4) as client:
        sent = [np.full(5000, n, np.float32) for n in range(32)]
        asked = [client.async_infer("fp32", [tensor("FP32", data)]) for data in sent]
        for data, answer in zip(sent, asked):
            same(data, answer.get_result().as_numpy("y"))
    checked("async_infer")


async def with_asyncio():
    async with aio.InferenceServerClient(ADDRESS) as client:
        assert await client.is_server_ready()
        assert (await client.get_model_metadata("int64"))["name"] == "int64"
        sent = [np.full(5000, n, np.int64) for n in range(16)]
        asked = [client.infer("int64", [tensor("INT64", data)], request_compression_algorithm=packed,
                              response_compression_algorithm=packed)
                 for data, packed in zip(sent, [None, "gzip", "deflate", None] * 4)]
        for data, answer in zip(sent, await asyncio.gather(*asked)):
            same(data, answer.as_numpy("y"))
    checked("tritonclient.http.aio")


def refusals(client):
    data = TYPES["FP32"]
    refused("no model `nobody`", client.infer, "nobody", [tensor("FP32", data)])
    refused("not its version `9`", client.infer, "fp32", [tensor("FP32", data)], model_version="9")
    refused("no input `z`", client.infer, "fp32", [tensor("FP32", data, name="z")])
    refused("is FP64 and has to be FP32", client.infer, "fp32", [tensor("FP64", TYPES["FP64"])])
    refused("no output `z`", client.infer, "fp32", [tensor("FP32", data)],
            outputs=[http.InferRequestedOutput("z")])
    refused("classification", client.infer, "fp32", [tensor("FP32", data)],
            outputs=[http.InferRequestedOutput("y", class_count=2)])
    refused("sequence", client.infer, "fp32", [tensor("FP32", data)], sequence_id=1, sequence_start=True)
    checked("wrong requests are refused in words")
    shared = http.InferInput("x", [4], "FP32")
    shared.set_shared_memory("region", 16)
    refused("shared memory", client.infer, "fp32", [shared])
    output = http.InferRequestedOutput("y")
    output.set_shared_memory("region", 16)
    refused("shared memory", client.infer, "fp32", [tensor("FP32", data)], outputs=[output])
    refused("shared memory", client.get_system_shared_memory_status)
    refused("shared memory", client.register_system_shared_memory, "region", "/region", 16)
    refused("shared memory", client.unregister_system_shared_memory)
    refused("shared memory", client.get_cuda_shared_memory_status)
    refused("shared memory", client.register_cuda_shared_memory, "region", b"handle", 0, 16)
    refused("shared memory", client.unregister_cuda_shared_memory, "region")
    checked("shared memory is refused in words")
    refused("control socket", client.get_model_repository_index)
    refused("control socket", client.load_model, "fp32")
    refused("control socket", client.unload_model, "fp32")
    refused("nothing at this path", client.get_trace_settings)
    assert client.is_model_ready("fp32")
    checked("loading and unloading is not for clients")


def main():
    with http.InferenceServerClient(ADDRESS) as client:
        metadata(client)
        every_type(client)
        what_goes_with_it(client)
        compressed(client)
        refusals(client)
    several_at_once()
    asyncio.run(with_asyncio())


main()
