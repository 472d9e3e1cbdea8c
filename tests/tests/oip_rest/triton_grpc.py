"""Asks a running host over gRPC as Triton's own Python client does; prints what it checked, one line each.

Arguments: the host's address without its scheme, and the path of its control socket. Served there: an identity
(input x, output y, one free extent) of every element type under its name in small letters.
"""

import asyncio
import http.client
import json
import socket
import sys
import threading

import grpc
import ml_dtypes
import numpy as np
import tritonclient.grpc as triton
import tritonclient.grpc.aio as aio
from google.protobuf.json_format import MessageToDict
from google.protobuf.unknown_fields import UnknownFieldSet
from tritonclient.grpc import service_pb2, service_pb2_grpc
from tritonclient.utils import InferenceServerException

ADDRESS, CONTROL = sys.argv[1:3]

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

# Where numbers and texts of each type stand.
CONTENTS = {
    "BOOL": "bool_contents", "UINT8": "uint_contents", "UINT16": "uint_contents", "UINT32": "uint_contents",
    "UINT64": "uint64_contents", "INT8": "int_contents", "INT16": "int_contents", "INT32": "int_contents",
    "INT64": "int64_contents", "FP32": "fp32_contents", "FP64": "fp64_contents", "BYTES": "bytes_contents",
}


def checked(what):
    print(what, flush=True)


def same(sent, came):
    assert came is not None and came.dtype == sent.dtype and came.shape == sent.shape, (sent, came)
    if sent.dtype == np.object_:
        assert list(came) == list(sent), (sent, came)
    else:
        # Bit for bit: NaN and the sign of zero too.
        assert came.tobytes() == sent.tobytes(), (sent, came)


def refused(status, says, ask, *arguments, **named):
    try:
        ask(*arguments, **named)
    except InferenceServerException as error:
        assert error.status() == f"StatusCode.{status}" and says in error.message(), (status, says, error)
        return
    raise AssertionError(f"not refused: {ask.__name__} {arguments} {named}")


def tensor(datatype, data, name="x"):
    given = triton.InferInput(name, list(data.shape), datatype)
    given.set_data_from_numpy(data)
    return given


def metadata(client):
    assert client.is_server_live() and client.is_server_ready()
    assert client.is_model_ready("fp32") and client.is_model_ready("fp32", "1.0.0")
    assert not client.is_model_ready("nobody")
    assert "binary_tensor_data" in client.get_server_metadata().extensions
    for version in ["", "1.0.0", "1"]:
        told = client.get_model_metadata("bf16", version)
        assert (told.name, list(told.versions), told.platform) == ("bf16", ["1.0.0"], "selvedge"), told
        [given] = told.inputs
        assert (given.name, given.datatype, list(given.shape)) == ("x", "BF16", [-1]), told
        config = client.get_model_config("bf16", version, as_json=True)["config"]
        assert config["input"][0]["data_type"] == "TYPE_BF16" and config["backend"] == "selvedge", config
        assert config["instance_group"][0]["kind"] == "KIND_CPU", config
        assert config["parameters"]["tensor_mib"]["string_value"].isdigit(), config
    checked("health, metadata and configuration")


def over_rest(connection, method, path):
    connection.request(method, path, body=b"{}" if method == "POST" else None)
    answer = connection.getresponse()
    told = json.loads(answer.read())
    assert answer.status == 200, (path, told)
    return told


def same_as_rest(message, told, left=()):
    """A message as Google's library reads it by the service's definition says what REST says, and no more."""
    unknown = {field.field_number for field in UnknownFieldSet(message)}
    # `properties` of the protocol's ModelMetadataResponse, which Triton's does not know.
    assert unknown <= {6} if "parameters" in left else not unknown, (message, unknown)
    read = MessageToDict(message, preserving_proto_field_name=True, always_print_fields_with_no_presence=True)

    def same(read, told, place, message):
        if isinstance(told, dict):
            assert message is None or not list(UnknownFieldSet(message)) or place == "", (place, message)
            for name, value in told.items():
                if name in left:
                    continue
                assert name in read, (place, name, read)
                inner = getattr(message, name, None)
                same(read[name], value, f"{place}.{name}", inner if hasattr(inner, "DESCRIPTOR") else None)
            # What REST does not say is at its default.
            empty = [read[name] for name in read.keys() - told.keys()]
            assert all(not value or isinstance(value, (str, dict, list)) for value in empty), (place, read, told)
        elif isinstance(told, list):
            assert len(read) == len(told), (place, read, told)
            for number, (one, other) in enumerate(zip(read, told)):
                same(one, other, f"{place}[{number}]", None)
        else:
            # 64 bits are a text in JSON of protobuf.
            assert read == told or read == str(told), (place, read, told)

    same(read, told, "", message)


def as_rest_tells(client):
    rest = http.client.HTTPConnection(ADDRESS)
    same_as_rest(client.get_server_metadata(), over_rest(rest, "GET", "/v2"), ["confinement"])
    for name in ["fp32", "bytes"]:
        path = f"/v2/models/{name}"
        same_as_rest(client.get_model_metadata(name), over_rest(rest, "GET", path), ["parameters"])
        config = {"config": over_rest(rest, "GET", f"{path}/config")}
        same_as_rest(client.get_model_config(name), config)
        # What it takes may be another moment's.
        for message, path in [(client.get_inference_statistics(name), f"{path}/stats"),
                              (client.get_inference_statistics(), "/v2/models/stats")]:
            told = over_rest(rest, "GET", path)
            assert all(stats["inference_count"] > 0 and stats["batch_stats"] for stats in told["model_stats"]), told
            assert all(stats.memory_usage[0].byte_size > 0 for stats in message.model_stats), message
            same_as_rest(message, told, ["byte_size"])
    checked("metadata, configuration and statistics as REST tells them")


class OnASocket(http.client.HTTPConnection):
    def connect(self):
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.connect(CONTROL)


def every_type(client):
    for datatype, whole in TYPES.items():
        # The last one is larger than what may come before it is read.
        for data in [whole, whole[:0], np.resize(whole, 3000), np.resize(whole, 400_000)]:
            answer = client.infer(datatype.lower(), [tensor(datatype, data)])
            same(data, answer.as_numpy("y"))
        checked(f"{datatype}: as bytes")


def as_numbers(channel):
    stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)
    for datatype, field in CONTENTS.items():
        data = TYPES[datatype]
        given = service_pb2.ModelInferRequest.InferInputTensor(name="x", datatype=datatype, shape=data.shape)
        getattr(given.contents, field).extend(data.tolist())
        answer = stub.ModelInfer(service_pb2.ModelInferRequest(model_name=datatype.lower(), inputs=[given]))
        assert not answer.raw_output_contents
        [output] = answer.outputs
        assert (output.datatype, list(output.shape)) == (datatype, list(data.shape)), output
        kind = np.object_ if datatype == "BYTES" else data.dtype
        same(data, np.array(list(getattr(output.contents, field)), kind))
    checked("numbers and texts instead of bytes")


def what_goes_with_it(client):
    data = TYPES["FP32"]
    answer = client.infer("fp32", [tensor("FP32", data)], request_id="seven", timeout=60_000_000, client_timeout=60,
                          model_version="1.0.0", priority=1, outputs=[triton.InferRequestedOutput("y")],
                          parameters={"mine": 1, "text": "a", "real": 0.5, "yes": True})
    told = answer.get_response()
    assert (told.id, told.model_version) == ("seven", "1.0.0"), told
    assert told.parameters["selvedge_package"].string_param.startswith("sha256:"), told
    assert told.parameters["selvedge_release"].int64_param == 1, told
    same(data, answer.as_numpy("y"))
    checked("id, version, timeout and parameters")


def compressed(client):
    data = np.arange(20_000, dtype=np.float32)
    for packed in ["gzip", "deflate"]:
        answer = client.infer("fp32", [tensor("FP32", data)], compression_algorithm=packed)
        same(data, answer.as_numpy("y"))
    checked("gzip and deflate")


def several_at_once(client):
    sent = [np.full(5000, n, np.float32) for n in range(32)]
    answers, all_here = {}, threading.Event()

    def take(number):
        def taken(result, error):
            answers[number] = error or result.as_numpy("y")
            if len(answers) == len(sent):
                all_here.set()
        return taken

    for number, data in enumerate(sent):
        client.async_infer("fp32", [tensor("FP32", data)], take(number))
    assert all_here.wait(60)
    for number, data in enumerate(sent):
        same(data, answers[number])
    checked("async_infer")


def on_a_stream(client):
    answers, here = [], threading.Semaphore(0)

    def taken(result, error):
        answers.append((result, error))
        here.release()

    client.start_stream(taken)
    sent = [np.full(5000, n, np.float32) for n in range(8)]
    for number, data in enumerate(sent):
        name = "nobody" if number == 3 else "fp32"
        client.async_stream_infer(name, [tensor("FP32", data)], request_id=str(number))
    for _ in sent:
        assert here.acquire(timeout=60)
    client.stop_stream()
    for number, ((result, error), data) in enumerate(zip(answers, sent)):
        if number == 3:
            assert "no model `nobody`" in error.message(), error
        else:
            assert result.get_response().id == str(number)
            same(data, result.as_numpy("y"))
    checked("a stream of requests")


async def with_asyncio():
    async with aio.InferenceServerClient(ADDRESS) as client:
        assert await client.is_server_ready()
        assert (await client.get_model_metadata("int64")).name == "int64"
        sent = [np.full(5000, n, np.int64) for n in range(16)]
        asked = [client.infer("int64", [tensor("INT64", data)], compression_algorithm=packed)
                 for data, packed in zip(sent, [None, "gzip", "deflate", None] * 4)]
        for data, answer in zip(sent, await asyncio.gather(*asked)):
            same(data, answer.as_numpy("y"))
    checked("tritonclient.grpc.aio")


def refusals(client):
    data = TYPES["FP32"]
    asked = [tensor("FP32", data)]
    refused("NOT_FOUND", "no model `nobody`", client.infer, "nobody", asked)
    refused("NOT_FOUND", "not its version `9`", client.infer, "fp32", asked, model_version="9")
    refused("INVALID_ARGUMENT", "no input `z`", client.infer, "fp32", [tensor("FP32", data, name="z")])
    refused("INVALID_ARGUMENT", "is FP64 and has to be FP32", client.infer, "fp32", [tensor("FP64", TYPES["FP64"])])
    refused("INVALID_ARGUMENT", "no output `z`", client.infer, "fp32", asked,
            outputs=[triton.InferRequestedOutput("z")])
    refused("UNIMPLEMENTED", "classification", client.infer, "fp32", asked,
            outputs=[triton.InferRequestedOutput("y", class_count=2)])
    checked("wrong requests are refused in words")
    shared = triton.InferInput("x", [4], "FP32")
    shared.set_shared_memory("region", 16)
    output = triton.InferRequestedOutput("y")
    output.set_shared_memory("region", 16)
    refused("UNIMPLEMENTED", "shared memory", client.infer, "fp32", [shared])
    refused("UNIMPLEMENTED", "shared memory", client.infer, "fp32", asked, outputs=[output])
    for ask, arguments in [
        (client.get_system_shared_memory_status, []),
        (client.register_system_shared_memory, ["region", "/region", 16]),
        (client.unregister_system_shared_memory, []),
        (client.get_cuda_shared_memory_status, []),
        (client.register_cuda_shared_memory, ["region", b"aGFuZGxl", 0, 16]),
        (client.unregister_cuda_shared_memory, ["region"]),
    ]:
        refused("UNIMPLEMENTED", "shared memory", ask, *arguments)
    checked("shared memory is refused in words")
    refused("UNIMPLEMENTED", "control socket", client.get_model_repository_index)
    refused("UNIMPLEMENTED", "control socket", client.load_model, "fp32")
    refused("UNIMPLEMENTED", "control socket", client.unload_model, "fp32")
    refused("UNIMPLEMENTED", "SELVEDGE_LOG", client.get_trace_settings)
    assert client.is_model_ready("fp32")
    checked("loading and unloading is not for clients")


def on_the_control_socket():
    # What the library makes of a path (`%2Ftmp…`) is no authority of HTTP/2.
    authority = [("grpc.default_authority", "localhost")]
    with triton.InferenceServerClient(f"unix:{CONTROL}", channel_args=authority) as client:
        index = client.get_model_repository_index(as_json=True)["models"]
        assert {"name": "fp32", "version": "1.0.0", "state": "READY"} in index and len(index) == len(TYPES), index
        listed = {"models": over_rest(OnASocket("localhost"), "POST", "/v2/repository/index")}
        same_as_rest(client.get_model_repository_index(), listed)
        same(TYPES["FP32"], client.infer("fp32", [tensor("FP32", TYPES["FP32"])]).as_numpy("y"))
        refused("INVALID_ARGUMENT", "--packages DIR", client.load_model, "fp32")
        refused("INVALID_ARGUMENT", "takes no parameters", client.load_model, "fp32", config="{}")
        client.unload_model("fp32")
        refused("NOT_FOUND", "no model `fp32`", client.unload_model, "fp32")
        assert not client.is_model_ready("fp32")
        assert len(client.get_model_repository_index().models) == len(TYPES) - 1
        # With a reason now, if it is still there.
        listed = {"models": over_rest(OnASocket("localhost"), "POST", "/v2/repository/index")}
        same_as_rest(client.get_model_repository_index(), listed)
    checked("the model repository is on the control socket")


def main():
    with triton.InferenceServerClient(ADDRESS) as client:
        metadata(client)
        every_type(client)
        as_rest_tells(client)
        what_goes_with_it(client)
        compressed(client)
        several_at_once(client)
        on_a_stream(client)
        refusals(client)
    with grpc.insecure_channel(ADDRESS) as channel:
        as_numbers(channel)
    asyncio.run(with_asyncio())
    on_the_control_socket()


main()
