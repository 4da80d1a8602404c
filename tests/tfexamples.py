"""TFRecord files of `tf.train.Example` as TensorFlow writes them: by the libraries of protobuf and tensorboard."""

from __future__ import annotations

import gzip
import io
from pathlib import Path
from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from tensorboard.summary.writer.record_writer import RecordWriter

_TYPES = {"bytes": 12, "float": 2, "int64": 3, "string": 9}


def _messages() -> dict[str, Any]:
    """The messages of TensorFlow's example.proto and feature.proto."""
    file = descriptor_pb2.FileDescriptorProto(name="example.proto", package="t", syntax="proto3")

    def message(name: str, *fields: tuple[str, int, str, bool], within: Any = None) -> Any:
        made = (within.nested_type if within is not None else file.message_type).add(name=name)
        for called, number, kind, repeated in fields:
            field = made.field.add(name=called, number=number, label=3 if repeated else 1)
            if kind in _TYPES:
                field.type = _TYPES[kind]
            else:
                field.type, field.type_name = 11, f".t.{kind}"
        return made

    message("BytesList", ("value", 1, "bytes", True))
    message("FloatList", ("value", 1, "float", True))
    message("Int64List", ("value", 1, "int64", True))
    lists = (("bytes_list", 1, "BytesList"), ("float_list", 2, "FloatList"), ("int64_list", 3, "Int64List"))
    feature = message("Feature", *((name, number, kind, False) for name, number, kind in lists))
    feature.oneof_decl.add(name="kind")
    for field in feature.field:
        field.oneof_index = 0
    message("FeatureList", ("feature", 1, "Feature", True))
    for name, entry, value, called in (
        ("Features", "FeatureEntry", "Feature", "feature"),
        ("FeatureLists", "FeatureListEntry", "FeatureList", "feature_list"),
    ):
        made = message(name, (called, 1, f"{name}.{entry}", True))
        inner = message(entry, ("key", 1, "string", False), ("value", 2, value, False), within=made)
        inner.options.map_entry = True
    message("Example", ("features", 1, "Features", False))
    message("SequenceExample", ("context", 1, "Features", False), ("feature_lists", 2, "FeatureLists", False))
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file) if hasattr(pool, "Add") else pool.AddSerializedFile(file.SerializeToString())
    names = ("Example", "SequenceExample")
    return {name: message_factory.GetMessageClass(pool.FindMessageTypeByName(f"t.{name}")) for name in names}


_CLASSES = _messages()


def example(**features: Any) -> bytes:
    """A serialized Example: texts and bytes, floats, or whole numbers, one or a list."""
    made = _CLASSES["Example"]()
    for name, given in features.items():
        _fill(made.features.feature[name], given)
    return bytes(made.SerializeToString())


def sequence_example(**lists: list[Any]) -> bytes:
    """A serialized SequenceExample with these lists of features."""
    made = _CLASSES["SequenceExample"]()
    _fill(made.context.feature["id"], 1)
    for name, steps in lists.items():
        for one in steps:
            _fill(made.feature_lists.feature_list[name].feature.add(), one)
    return bytes(made.SerializeToString())


def _fill(feature: Any, given: Any) -> None:
    values = given if isinstance(given, list) else [given]
    if not values:
        return
    if isinstance(values[0], str | bytes):
        feature.bytes_list.value.extend([one.encode() if isinstance(one, str) else one for one in values])
    elif isinstance(values[0], float):
        feature.float_list.value.extend(values)
    else:
        feature.int64_list.value.extend(values)


def framed(*messages: bytes) -> bytes:
    """Messages as a TFRecord file has them."""
    out = io.BytesIO()
    writer = RecordWriter(out)
    for one in messages:
        writer.write(one)
    return out.getvalue()


def write(path: Path, *messages: bytes) -> Path:
    """A TFRecord file of these messages; gzip'ed if its name says so."""
    raw = framed(*messages)
    path.write_bytes(gzip.compress(raw) if path.suffix == ".gz" else raw)
    return path
