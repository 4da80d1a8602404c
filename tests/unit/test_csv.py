"""CSV files as users have them: every row comes, as what it is, or is reported with its file and line."""

from __future__ import annotations

import bz2
import csv
import gzip
import io
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cordee.core.errors import DataError
from cordee.feed.columns import Columns, Schema, joined
from cordee.feed.places import Place, resolve
from cordee.feed.sources import csv as csv_module
from cordee.feed.sources.arrow import pyarrow
from cordee.feed.sources.csv import CsvReader
from cordee.feed.sources.csvfile import Dialect
from cordee.feed.sources.csvrows import fields_in, last_end, rows
from cordee.feed.sources.seam import Fault
from cordee.feed.sources.types import type_pairs

pytest.importorskip("pyarrow")


def written(folder: Path, **files: str | bytes) -> list[Place]:
    places = []
    for name, content in files.items():
        path = folder / f"{name}.csv"
        path.write_bytes(content.encode() if isinstance(content, str) else content)
        places += resolve(path)
    return places


def everything(reader: CsvReader, places: Sequence[Place], schema: Schema | None = None) -> dict[str, list[Any]]:
    schema = reader.schema(places) if schema is None else schema
    found: list[Columns] = [chunk.columns for place in places for chunk in reader.chunks(place, schema)]
    assert all(list(columns) == list(schema) for columns in found)
    return {name: joined([columns[name] for columns in found]).tolist() if found else [] for name in schema}


def faults(reader: CsvReader, place: Place, schema: Schema | None = None) -> list[Fault]:
    schema = reader.schema([place]) if schema is None else schema
    return [fault for chunk in reader.chunks(place, schema) for fault in chunk.faults]


def kinds(schema: Schema) -> dict[str, str]:
    return {name: str(kind) for name, kind in schema.items()}


# ------------------------------------------------------------- what files are like


@pytest.mark.parametrize(
    ("content", "columns"),
    [
        ("a,b\n1,x\n2,y\n", {"a": [1, 2], "b": ["x", "y"]}),
        ("a,b\n1,x\n2,y", {"a": [1, 2], "b": ["x", "y"]}),
        ("\ufeffa,b\r\n1,x\r\n\r\n2,y\r\n\r\n", {"a": [1, 2], "b": ["x", "y"]}),
        ("a,b\r1,x\r2,y\r", {"a": [1, 2], "b": ["x", "y"]}),
        ("\n\n a , b\n1,x\n   \n2,y\n", {"a": [1, 2], "b": ["x", "y"]}),
        ('a,"b\nc"\n1,"x\r\ny"\n2,"say ""hi"""\n', {"a": [1, 2], "b c": ["x\r\ny", 'say "hi"']}),
        ('a,b\n1,5" pipe\n2,6" pipe\n', {"a": [1, 2], "b": ['5" pipe', '6" pipe']}),
        ("a\n1\n\n2\n", {"a": [1, 2]}),
        (",a\n0,1\n1,2\n", {"column_1": [0, 1], "a": [1, 2]}),
        ("a,b\n", {"a": [], "b": []}),
        ("a\n9007199254740993\n-9223372036854775808\n", {"a": [9007199254740993, -9223372036854775808]}),
        ("a\n18446744073709551615\n", {"a": [18446744073709551615]}),
        ("a,b\n99999999999999999999,1e19\n", {"a": [1e20], "b": [1e19]}),
        ("a,b\n9223372036854775808,1e19\n1,-1\n", {"a": [2**63, 1], "b": [1e19, -1.0]}),
        ("a,b\ntrue,1\nFalse,0\n", {"a": [True, False], "b": [1, 0]}),
        ("a\n2024-01-02\n1969-12-31\n", {"a": [1704153600.0, -86400.0]}),
        ("a\n2024-01-02 03:04:05\n2024-01-02 03:04:05.5\n", {"a": [1704164645.0, 1704164645.5]}),
        ("a\n2024-01-02T03:04:05+01:00\n", {"a": [1704161045.0]}),
        ("a\n12:30:00\n", {"a": [45000.0]}),
        ("ä,b\n1,ü\n", {"ä": [1], "b": ["ü"]}),
        ("a,b\n1e3,inf\n-2.5,0\n", {"a": [1000.0, -2.5], "b": [np.inf, 0.0]}),
        ("a\tb,c\n1,2\n", {"a b": [1], "c": [2]}),
        ("sep=,\r\na,b\r\n1,2\r\n", {"a": [1], "b": [2]}),
        ('a,b\n1,"{""k"": [1, 2]}"\n', {"a": [1], "b": ['{"k": [1, 2]}']}),
    ],
)
def test_forms(tmp_path: Path, content: str, columns: dict[str, list[Any]]) -> None:
    assert everything(CsvReader(), written(tmp_path, a=content)) == columns


def test_missing_values(tmp_path: Path) -> None:
    places = written(tmp_path, a='n,f,t,b,d\n1,1.5,x,true,2024-01-01\n,NA,null,,\n3,nan,"NA",false,NA\n')
    schema = CsvReader().schema(places)
    assert kinds(schema) == {
        "n": "float64",
        "f": "float64",
        "t": "text (any length)",
        "b": "float32",
        "d": "float64",
    }
    found = everything(CsvReader(), places)
    assert np.array_equal(found["n"], [1, np.nan, 3], equal_nan=True)
    assert np.array_equal(found["f"], [1.5, np.nan, np.nan], equal_nan=True)
    assert np.array_equal(found["b"], [1, np.nan, 0], equal_nan=True)
    assert found["t"] == ["x", "", "NA"]
    assert np.isnan(found["d"][1:]).all() and found["d"][0] == 1704067200
    own = everything(CsvReader(missing=("?",)), written(tmp_path, b="a,b\n1,NA\n?,?\n"))
    assert np.array_equal(own["a"], [1, np.nan], equal_nan=True) and own["b"] == ["NA", ""]


def test_dialects(tmp_path: Path) -> None:
    european = Dialect(separator=";", decimal=",", encoding="latin-1", dates=("%d.%m.%Y",))
    places = written(tmp_path, a="preis;name;tag\n1,5;Müller;31.12.1999\n".encode("latin-1"))
    assert everything(CsvReader(dialect=european), places) == {
        "preis": [1.5],
        "name": ["Müller"],
        "tag": [946598400.0],
    }
    excel = written(tmp_path, b="a,b\r\n1,ü\r\n".encode("utf-16"))
    assert everything(CsvReader(), excel) == {"a": [1], "b": ["ü"]}
    bare = written(tmp_path, c='a,b\n"1,x\n')
    assert everything(CsvReader(dialect=Dialect(quote="")), bare) == {"a": ['"1'], "b": ["x"]}
    (tmp_path / "d.tsv").write_text("a\tb\n1\tx,y\n")
    assert everything(CsvReader(), resolve(tmp_path / "d.tsv")) == {"a": [1], "b": ["x,y"]}
    with pytest.raises(DataError, match="the header is one column, 'a;b': give its separator, dialect=';'"):
        CsvReader().schema(written(tmp_path, e="a;b\n1;2\n"))
    with pytest.raises(DataError, match=r"byte 0xfc is not UTF-8: .*latin-1"):
        everything(CsvReader(), written(tmp_path, f="a,b\n1,x\n2,ü\n".encode("latin-1")))
    for wrong in ({"separator": "::"}, {"separator": "\n"}, {"decimal": ""}, {"encoding": "klingon"}, {"quote": ","}):
        with pytest.raises(DataError):
            Dialect(**{"separator": ",", **wrong})  # type: ignore[arg-type]


def test_files_without_a_header(tmp_path: Path) -> None:
    places = written(tmp_path, a="\ufeff1,x\n2,y\n", b="3,z\n")
    assert everything(CsvReader(names=("n", "t")), places) == {"n": [1, 2, 3], "t": ["x", "y", "z"]}


@pytest.mark.parametrize("packing", ["gz", "bz2", "zst"])
def test_packed_files(tmp_path: Path, packing: str) -> None:
    text = "a,b\n" + "".join(f"{i},w{i}\n" for i in range(5000))
    path = tmp_path / f"a.csv.{packing}"
    data = text.encode()
    if packing == "gz":  # two members, as `cat` of two files makes them
        path.write_bytes(gzip.compress(data[:9000]) + gzip.compress(data[9000:]))
    else:
        path.write_bytes(bz2.compress(data) if packing == "bz2" else pyarrow().compress(data, "zstd", asbytes=True))
    reader, places = CsvReader(block=1024), resolve(path)
    assert everything(reader, places) == {"a": list(range(5000)), "b": [f"w{i}" for i in range(5000)]}
    schema = reader.schema(places)
    chunks = list(reader.chunks(places[0], schema))
    again = list(reader.chunks(places[0], schema, chunks[3].next))
    assert [chunk.next for chunk in again] == [chunk.next for chunk in chunks[4:]] and len(chunks) > 10
    path.write_bytes(path.read_bytes()[:-2000])
    with pytest.raises(DataError, match="damaged"):
        everything(reader, resolve(path), schema)


# ------------------------------------------------------------- many files


def test_types_are_those_of_all_files(tmp_path: Path) -> None:
    places = written(
        tmp_path,
        a="n,zip,when,late,same\n1,123,2024-01-01,,1\n",
        b="zip,n,late,when,same\nab1,2.5,2024-01-01,2024-01-01 10:00:00,2\n",
        c="n,zip,when,late,same\n",
    )
    assert kinds(CsvReader().schema(places)) == {
        "n": "float64",
        "zip": "text (any length)",
        "when": "float64",
        "late": "float64",
        "same": "int64",
    }
    found = everything(CsvReader(), places)
    assert found["n"] == [1.0, 2.5] and found["zip"] == ["123", "ab1"] and found["when"] == [1704067200, 1704103200]
    assert np.isnan(found["late"][0]) and found["late"][1] == 1704067200


def test_types_and_columns_of_the_users(tmp_path: Path) -> None:
    places = written(tmp_path, a="a,b,c,d\n1,2,007,true\n3,4,008,false\n")
    reader = CsvReader(types=type_pairs({"a": np.float32, "c": "text", "d": "uint8"}), columns=("c", "a", "d"))
    assert kinds(reader.schema(places)) == {"c": "text (any length)", "a": "float32", "d": "uint8"}
    assert everything(reader, places) == {"c": ["007", "008"], "a": [1.0, 3.0], "d": [1, 0]}
    for wrong, message in (
        (CsvReader(columns=("z",)), "columns names 'z', which no column is called: there are a, b, c, d"),
        (CsvReader(types=type_pairs({"z": "text"})), "types names 'z'"),
        (CsvReader(types=type_pairs({"a": "float32 (3,)"})), "a field of CSV is one number or a text"),
    ):
        with pytest.raises(DataError, match=message):
            wrong.schema(places)
    with pytest.raises(DataError, match=r"types={'a': 'flaot'} is not known"):
        type_pairs({"a": "flaot"})
    with pytest.raises(DataError, match="on_error='ignore' is not known: 'stop' or 'skip'"):
        CsvReader(on_error="ignore")


def test_whole_numbers_that_no_float_holds(tmp_path: Path) -> None:
    places = written(tmp_path, a="a,b\n9007199254740993,1\n,2\n")
    with pytest.raises(DataError, match=r"column a has missing values, and whole numbers beyond 2\*\*53"):
        CsvReader().schema(places)
    reader = CsvReader(types=type_pairs({"a": "text"}))
    assert everything(reader, places)["a"] == ["9007199254740993", ""]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "row 1: the file is empty, .*; remove it, or leave such files out .*on_error='skip'"),
        ("\n\r\n", "row 1: the file is empty"),
        ("a,c\n1,2\n", "row 1: .*it has no b and also c"),
        ("a,b,c\n1,2,3\n", "row 1: .*it has also c"),
        ("a,b,a\n1,2,3\n", "row 1: two columns are called 'a'"),
        (b"PK\x03\x04rest", "row 1: the file is no CSV but a zip archive or an Excel workbook"),
        (b"\x1f\x8brest", "row 1: the file is no CSV but compressed by gzip: let its name end in .gz"),
    ],
)
def test_files_that_do_not_belong(tmp_path: Path, content: str | bytes, message: str) -> None:
    places = written(tmp_path, a="a,b\n1,2\n", b=content, c="b,a\n4,3\n")
    with pytest.raises(DataError, match=message.replace("row 1: .*", "")):
        CsvReader().schema(places)
    reader = CsvReader(on_error="skip")
    schema = reader.schema(places)
    assert everything(reader, places, schema) == {"a": [1, 3], "b": [2, 4]}
    (fault,) = faults(reader, places[1], schema)
    assert fault.row == 1 and fault.file == places[1].url and "on_error" not in fault.reason
    (last,) = reader.chunks(places[1], schema)
    assert not list(reader.chunks(places[1], schema, last.next))


# ------------------------------------------------------------- rows that do not fit


def test_rows_that_do_not_fit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(csv_module, "LOOKED", 200)
    lines = [f'{i},{i / 2},"w\r\n{i}"\r\n' for i in range(1000)]  # two lines each
    for at, line in {500: "500,abc,x\r\n", 501: "501,1\r\n", 600: "\r\n", 700: ",1,x\r\n", 800: "1,2,3,4\r\n"}.items():
        lines[at] = line
    places = written(tmp_path, a="i,f,t\r\n" + "".join(lines))
    expected = [
        (1002, "column f is 'abc', which is not float64"),
        (1003, "it has 2 fields, where the first row has 3"),
        (1399, "column i is missing, and int64 has no missing value"),
        (1598, "it has 4 fields, where the first row has 3"),
    ]
    kept = [i for i in range(1000) if i not in (500, 501, 600, 700, 800)]
    for block in (300, 4000, 1 << 20):
        reader = CsvReader(on_error="skip", block=block)
        schema = reader.schema(places)
        assert everything(reader, places, schema)["i"] == kept
        assert [(fault.row, fault.reason) for fault in faults(reader, places[0], schema)] == expected
        later = list(reader.chunks(places[0], schema))[3:] if block == 300 else []
        again = list(reader.chunks(places[0], schema, later[0].next)) if later else []
        assert [(one.next, one.rows, one.faults) for one in again] == [
            (one.next, one.rows, one.faults) for one in later[1:]
        ]
        with pytest.raises(DataError, match=r"a.csv, row 1002: column f is 'abc', .* types=.* on_error='skip'"):
            everything(CsvReader(block=block), places, schema)


def test_a_quote_that_is_never_closed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(csv_module, "LONGEST_ROW", 10_000)
    places = written(tmp_path, a='a,b\n1,"x\n' + "2,y\n" * 10_000)
    schema = CsvReader(names=("a", "b"), dialect=Dialect(quote="")).schema(places)
    (short,) = written(tmp_path, b='a,b\n1,x\n2,"\n\n"\n3,"y\n4,z\n')
    reader = CsvReader(on_error="skip", types=type_pairs({"b": "text"}))
    assert everything(reader, [short]) == {"a": [1, 2], "b": ["x", "\n\n"]}
    assert [str(one) for one in faults(reader, short)] == [
        f"{short.url}, row 6: a quote is opened in it and never closed"
    ]
    with pytest.raises(DataError, match=r"the row at byte 4 is longer .*never closed\? .*quote=''"):
        everything(CsvReader(block=100), places, schema)


# ------------------------------------------------------------- beside Python's own reader


def random_file(draw: random.Random) -> tuple[str, str]:
    ending = draw.choice(["\n", "\r\n"])
    stream = io.StringIO(newline="")
    writer = csv.writer(stream, lineterminator=ending, quoting=draw.choice([csv.QUOTE_ALL, csv.QUOTE_MINIMAL]))
    words = ["a", "", 'say "x"', "line\nbreak", "comma, here", "\r\n", '"', '""', ",", "ü", "x" * 50, " lead"]
    writer.writerow(["n", "t", "u"])
    for i in range(draw.randrange(1, 300)):
        writer.writerow([i, draw.choice(words), draw.choice(words)])
    return stream.getvalue(), ending


@pytest.mark.parametrize("seed", range(20))
def test_any_block_gives_the_rows_that_pythons_reader_gives(tmp_path: Path, seed: int) -> None:
    draw = random.Random(seed)
    text, _ = random_file(draw)
    places = written(tmp_path, a=text)
    expected = list(csv.reader(io.StringIO(text, newline="")))[1:]
    for block in (64, 1000, 1 << 20):
        found = everything(CsvReader(block=block, missing=()), places)
        assert [list(row) for row in zip(map(str, found["n"]), found["t"], found["u"], strict=True)] == expected


@pytest.mark.parametrize(
    "text",
    ['a,b"c\nd,"e\nf"\n"g"h"\n', '1,5" x\n2,"6"" \n y"\n3,"z"', 'a,""\n"",b\n""""\n', "a\r\nb\rc\n\rd", ' "a,b"\n,\n'],
)
@pytest.mark.parametrize("final", [True, False])
def test_rows_are_cut_as_the_parser_cuts_them(text: str, final: bool) -> None:
    data = text.encode()
    found = [data[row.start : row.stop] for row in rows(data, b",", b'"', final=final)]
    assert b"".join(found) == data[: sum(map(len, found))]
    assert sum(map(len, found)) in ((len(data),) if final else range(len(data) + 1))
    if not final:
        ends = {sum(map(len, found[: at + 1])) for at in range(-1, len(found))}
        assert last_end(data, b",", b'"') in ends
    wide = max(fields_in(row, b",", b'"') for row in found)
    for row in found:
        if row.strip():
            parsed = pyarrow().csv.read_csv(
                io.BytesIO(row.rstrip(b"\n") + b"\n"),
                read_options=pyarrow().csv.ReadOptions(autogenerate_column_names=True),
                parse_options=pyarrow().csv.ParseOptions(newlines_in_values=True),
            )
            assert (parsed.num_rows, parsed.num_columns) == (1, fields_in(row, b",", b'"'))
    assert wide <= 2


def test_a_thousand_columns_and_a_thousand_files(tmp_path: Path) -> None:
    names = [f"c{i}" for i in range(1000)]
    wide = written(tmp_path, a=",".join(names) + "\n" + (",".join("1.5" for _ in names) + "\n") * 20)
    found = everything(CsvReader(block=30_000), wide)
    assert len(found) == 1000 and all(column == [1.5] * 20 for column in found.values())
    folder = tmp_path / "many"
    folder.mkdir()
    for i in range(1000):
        (folder / f"{i:04}.csv").write_text(f"a,b\n{i},x{i}\n")
    places = resolve(folder, CsvReader.endings)
    assert everything(CsvReader(), places)["a"] == list(range(1000))


def test_the_key_tells_readers_apart() -> None:
    readers = [
        CsvReader(),
        CsvReader(names=("a",)),
        CsvReader(missing=()),
        CsvReader(on_error="skip"),
        CsvReader(types=type_pairs({"a": "text"})),
        CsvReader(columns=("a",)),
        CsvReader(dialect=Dialect(separator=";")),
    ]
    assert len({reader.key for reader in readers}) == len(readers)
    assert CsvReader(block=1).key == CsvReader().key


def test_rows_before_damage_are_kept_however_many_blocks_make_a_chunk(tmp_path: Path) -> None:
    text = "a\n" + "".join(f"{number}\n" for number in range(5_000))
    (tmp_path / "a.csv.gz").write_bytes(gzip.compress(text.encode())[:-100])
    (tmp_path / "b.csv").write_text(text)
    reader, (damaged, good) = CsvReader(on_error="skip", block=1024), resolve(tmp_path)
    *chunks, last = reader.chunks(damaged, reader.schema([good]))
    numbers = [number for chunk in chunks for number in chunk.columns["a"].tolist()]
    assert len(numbers) > 1_000 and numbers == list(range(len(numbers)))
    assert last.rows == 0 and len(last.faults) == 1
