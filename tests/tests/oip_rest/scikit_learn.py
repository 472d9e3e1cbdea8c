"""Models of scikit-learn as skl2onnx exports them, and scikit-learn's own predictions beside the host's.

Arguments: `export FOLDER` trains them and writes a file for each into the folder; `ask ADDRESS` trains the same
ones again, asks the host at ADDRESS (without a scheme) for each, and prints a line for each that answers as
scikit-learn does. Names of models and of their tensors are those that skl2onnx gives where nobody chooses any.
"""

import sys
from pathlib import Path

import numpy as np
import tritonclient.http as http
from skl2onnx import to_onnx
from skl2onnx.common.data_types import FloatTensorType, StringTensorType
from sklearn.compose import make_column_transformer
from sklearn.datasets import load_iris
from sklearn.ensemble import RandomForestClassifier
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.linear_model import LinearRegression, LogisticRegression
from sklearn.multioutput import MultiOutputClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler

FLOWERS, KINDS = load_iris(return_X_y=True)
FLOWERS = FLOWERS.astype(np.float32)
NAMES = np.array(["setosa", "versicolor", "virginica"])[KINDS]
TEXTS = ["the cat sat", "dogs bark loud", "a cat purrs", "the dog barks", "cats and dogs", "loud bark"]
ANIMALS = ["cat", "dog", "cat", "dog", "cat", "dog"]
THINGS = np.array([["red", 1.0, 2.0], ["blue", 2.0, 1.0], ["red", 3.0, 0.0], ["grün", 0.0, 1.0]], object)

linear = LogisticRegression(max_iter=1000)
columns = make_column_transformer((OneHotEncoder(handle_unknown="ignore"), [0]), (StandardScaler(), [1, 2]))

# Everything after fit() says how it is exported.
TRAINED = {
    "numbers": (make_pipeline(StandardScaler(), LogisticRegression()).fit(FLOWERS, KINDS), {}),
    "names": (LogisticRegression(max_iter=1000).fit(FLOWERS, NAMES), {}),
    "forest": (RandomForestClassifier(20, random_state=0).fit(FLOWERS, NAMES), {}),
    "plain": (RandomForestClassifier(20, random_state=0).fit(FLOWERS, NAMES), {"zipmap": False}),
    "columns": (LogisticRegression(max_iter=1000).fit(FLOWERS, NAMES), {"zipmap": "columns"}),
    "several": (MultiOutputClassifier(linear).fit(FLOWERS, np.c_[KINDS, KINDS > 0]), {}),
    "length": (LinearRegression().fit(FLOWERS[:, :3], FLOWERS[:, 3]), {}),
    "text": (
        make_pipeline(TfidfVectorizer(), LogisticRegression()).fit(TEXTS, ANIMALS),
        {"tfidfvectorizer__locale": "C.UTF-8"},
    ),
    "things": (make_pipeline(columns, LogisticRegression()).fit(THINGS, [0, 1, 0, 1]), {}),
}


def taken_by(name):
    """What skl2onnx is told of a model's inputs."""
    one = [None, 1]
    if name == "text":
        return [("text", StringTensorType([None]))]
    if name == "things":
        return [("colour", StringTensorType(one)), ("size", FloatTensorType(one)), ("kg", FloatTensorType(one))]
    return [("X", FloatTensorType([None, 3 if name == "length" else 4]))]


def export(folder):
    for name, (model, options) in TRAINED.items():
        exported = to_onnx(model, initial_types=taken_by(name), options=options)
        (Path(folder) / f"{name}.onnx").write_bytes(exported.SerializeToString())


def asked_of(name):
    """Rows for scikit-learn, and the same as the model's inputs."""
    if name == "text":
        texts = ["The CAT barks", "loud", "", "naïve dogs"]
        return texts, {"text": np.array([text.encode() for text in texts], object)}
    if name == "things":
        rows = np.array([["red", 1.5, 0.5], ["mauve", -1.0, 4.0], ["grün", 2.0, 2.0]], object)
        colours = np.array([[colour.encode()] for colour in rows[:, 0]], object)
        return rows, {"colour": colours, "size": rows[:, 1:2].astype(np.float32), "kg": rows[:, 2:].astype(np.float32)}
    rows = FLOWERS[::7, : 3 if name == "length" else 4]
    return rows, {"X": rows}


def ask(client, name, inputs, binary):
    given = []
    for tensor, data in inputs.items():
        given.append(http.InferInput(tensor, list(data.shape), "BYTES" if data.dtype == object else "FP32"))
        given[-1].set_data_from_numpy(data, binary_data=binary)
    names = [output["name"] for output in client.get_model_metadata(name)["outputs"]]
    wanted = [http.InferRequestedOutput(output, binary_data=binary) for output in names]
    answer = client.infer(name, given, outputs=wanted)
    return {output: answer.as_numpy(output) for output in names}


def texts(array):
    """Labels that are text come as bytes."""
    return [one.decode() if isinstance(one, bytes) else one for one in array.tolist()]


def close(came, expected):
    assert came.shape == expected.shape, (came.shape, expected.shape)
    np.testing.assert_allclose(came, expected, rtol=1e-4, atol=1e-5)


def agrees(name, model, rows, outputs):
    if name == "length":
        return close(outputs["variable"], model.predict(rows).reshape(-1, 1))
    if name == "several":
        # A sequence of tables, one for each of what it predicts.
        assert outputs["label"].tolist() == model.predict(rows).tolist()
        tables = model.predict_proba(rows)
        assert outputs["probabilities.shapes"].tolist() == [list(table.shape) for table in tables]
        return close(outputs["probabilities"], np.concatenate([table.ravel() for table in tables]))
    label, probability = ("label", "probabilities") if name == "plain" else ("output_label", "output_probability")
    assert texts(outputs[label]) == model.predict(rows).tolist()
    if name == "columns":
        table = np.stack([outputs[f"s{column}"] for column in model.classes_], axis=1)
        return close(table, model.predict_proba(rows))
    if name != "plain":
        assert texts(outputs[f"{probability}.keys"]) == model.classes_.tolist()
    close(outputs[probability], model.predict_proba(rows))


def compare(address):
    client = http.InferenceServerClient(address)
    for name, (model, _) in TRAINED.items():
        rows, inputs = asked_of(name)
        for binary in [True, False]:
            agrees(name, model, rows, ask(client, name, inputs, binary))
        print(f"{name}: {len(rows)} rows", flush=True)


if __name__ == "__main__":
    {"export": export, "ask": compare}[sys.argv[1]](sys.argv[2])
