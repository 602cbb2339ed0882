"""Label files are imported whole or not at all, and what is wrong with them is said by line and field."""

from __future__ import annotations

import gzip
import io
import json
from pathlib import Path

import pytest
from django.contrib.auth.models import User
from django.core.files.uploadedfile import SimpleUploadedFile
from django.core.management import CommandError, call_command
from django.test import Client
from django.urls import reverse

from steering.features import label_files
from steering.features.label_files import parse_label_file, read_label_file
from steering.features.label_import import import_labels
from steering.features.labels import MAX_EXAMPLE_TOKENS, MAX_EXAMPLES, LabelSet
from steering.spec.errors import InvalidSpecError

EXPLANATION = {
    "id": "clx1",
    "modelId": "gpt2-small",
    "layer": "1-res-jb",
    "index": "3",
    "description": "storms at sea",
    "typeName": "oai_token-act-pair",
    "explanationModelName": "gpt-4o-mini",
    "embedding": "[0.1, 0.2]",
}
ACTIVATION = {
    "modelId": "gpt2-small",
    "layer": "1-res-jb",
    "index": "3",
    "tokens": [" the", " storm"],
    "values": [0.0, 5.5],
    "maxValue": 5.5,
    "maxValueTokenIndex": 1,
}
STATISTICS = {
    "modelId": "gpt2-small",
    "layer": "1-res-jb",
    "index": "3",
    "maxActApprox": 7.25,
    "frac_nonzero": 0.004,
    "pos_str": [" sea"],
    "pos_values": [1.5],
}


def parse(data: str | bytes, name: str = "labels.jsonl", d_sae: int = 40) -> LabelSet:
    return parse_label_file(io.BytesIO(data.encode() if isinstance(data, str) else data), name, d_sae)


def lines(*records: object) -> str:
    return "\n".join(json.dumps(record) for record in records)


def problems(data: str | bytes, name: str = "labels.jsonl") -> list[str]:
    with pytest.raises(InvalidSpecError) as caught:
        parse(data, name)
    return [str(problem) for problem in caught.value.problems]


class TestFormats:
    OWN = {
        "index": 3,
        "label": "storms",
        "description": "At sea.",
        "source": "rita",
        "max_activation": 7.25,
        "density": 0.5,
        "top_tokens": [" storm", "\n"],
    }

    @pytest.mark.parametrize("suffix", [".json", ".jsonl", ".csv"])
    @pytest.mark.parametrize("packed", [False, True])
    def test_own_fields_in_all_containers(self, suffix, packed):
        header, cells = ",".join(self.OWN), '3,storms,At sea.,rita,7.25,0.5,"["" storm"", ""\\n""]"'
        texts = {".json": json.dumps([self.OWN]), ".jsonl": lines(self.OWN), ".csv": f"{header}\n{cells}\n"}
        data = texts[suffix].encode()
        found = parse(gzip.compress(data, mtime=0) if packed else data, f"x{suffix}.gz" if packed else f"x{suffix}")
        (label,) = found.labels
        assert (label.index, label.label, label.description, label.source) == (3, "storms", "At sea.", "rita")
        assert (label.max_activation, label.density, label.top_tokens) == (7.25, 0.5, (" storm", "\n"))

    def test_a_byte_order_mark_is_no_text(self):
        assert parse(b"\xef\xbb\xbfindex,label\n3,storms\n", "x.csv").labels[0].label == "storms"

    def test_neuronpedia_explanations(self):
        other = EXPLANATION | {"description": "bad weather", "explanationModelName": "claude"}
        found = parse(lines(EXPLANATION, other, EXPLANATION | {"index": 4, "description": ""}))
        assert found.origin == "gpt2-small/1-res-jb"
        first, second = found.labels
        assert (first.label, first.source) == ("storms at sea", "Neuronpedia gpt2-small/1-res-jb, gpt-4o-mini")
        assert first.description == "bad weather (Neuronpedia gpt2-small/1-res-jb, claude)"
        assert (second.index, second.label) == (4, "")

    def test_a_long_explanation_is_kept_whole(self):
        (label,) = parse(lines(EXPLANATION | {"description": "x" * 700})).labels
        assert (len(label.label), len(label.description)) == (500, 700)

    def test_explanations_without_room_are_counted(self):
        many = [EXPLANATION | {"description": f"{number} " + "x" * 400} for number in range(20)]
        found = parse(lines(*many))
        assert 0 < found.num_left_out < 19
        assert found.labels[0].description.count("\n") + 1 + found.num_left_out == 19

    def test_neuronpedia_activations_keep_the_strongest(self):
        records = [ACTIVATION | {"tokens": [f"t{n}"], "values": [float(n)]} for n in range(9)]
        (label,) = parse(lines(*records, records[8])).labels
        assert [example.top_token for example in label.examples] == ["t8", "t7", "t6", "t5", "t4"][:MAX_EXAMPLES]

    def test_long_texts_are_cut_around_the_maximum(self):
        values = [0.0] * 500
        values[300] = 2.0
        (label,) = parse(lines(ACTIVATION | {"tokens": [f"t{n}" for n in range(500)], "values": values})).labels
        (example,) = label.examples
        assert len(example.tokens) == len(example.values) == MAX_EXAMPLE_TOKENS
        assert (example.top_token, example.max_value) == ("t300", 2.0)

    def test_the_answer_of_neuronpedias_api(self):
        answer = STATISTICS | {"explanations": [EXPLANATION], "activations": [ACTIVATION], "neuron": None}
        (label,) = parse(json.dumps(answer), "feature.json").labels
        assert (label.max_activation, label.density, label.label) == (7.25, 0.004, "storms at sea")
        assert label.examples[0].top_token == " storm"


class TestBadInput:
    @pytest.mark.parametrize(
        ("record", "message"),
        [
            ({"index": 40}, "line 2.index: Expected an integer from 0 to 39, got 40."),
            ({"index": -1}, "line 2.index: Expected an integer"),
            ({"index": True}, "line 2.index: Expected an integer"),
            ({"index": 1.5}, "line 2.index: Expected an integer"),
            ({"label": "no index"}, "line 2.index: Expected an integer, got nothing."),
            ({"index": 5, "label": 7}, "line 2.label: Expected a string"),
            ({"index": 5, "label": "x" * 501}, "line 2.label: Expected a string of at most 500"),
            ({"index": 5, "label": "a\0b"}, "line 2.label: The text must not contain NUL."),
            ({"index": 5, "label": "\ud800"}, "line 2.label: The text must not contain unpaired surrogates."),
            ({"index": 5, "max_activation": float("nan")}, "line 2.max_activation: Expected a finite number"),
            ({"index": 5, "max_activation": 10**400}, "line 2.max_activation: Expected a finite number"),
            ({"index": 5, "max_activation": -1}, "line 2.max_activation: Expected a number of at least 0"),
            ({"index": 5, "density": 1.5}, "line 2.density: Expected a finite number"),
            ({"index": 5, "lable": "typo"}, "line 2.lable: Unknown field."),
            ({"index": 5, "examples": [{"tokens": ["a"], "values": [1, 2]}]}, "line 2.examples[0].values: Expected 1"),
            ({"index": 3}, "line 2.index: Feature 3 is listed twice."),
            (EXPLANATION | {"index": "x"}, "line 2.index: Expected an integer, got 'x'."),
            (EXPLANATION | {"index": "9" * 4000}, "line 2.index: Expected an integer"),
            (ACTIVATION | {"values": [0.0]}, "line 2.values: Expected 2 numbers"),
            (ACTIVATION | {"values": [0.0, float("inf")]}, "line 2.values[1]: Expected a finite number"),
            ([1], "line 2: Expected an object, got a list"),
        ],
    )
    def test_records_are_named_by_line_and_field(self, record, message):
        text = lines({"index": 3, "label": "fine"}, record)
        assert problems(text)[0].startswith(message)

    def test_records_of_two_saes_do_not_mix(self):
        (problem,) = problems(lines(EXPLANATION, EXPLANATION | {"index": 4, "layer": "2-res-jb"}))
        assert problem.startswith("line 2.layer: This label is for gpt2-small/2-res-jb")

    @pytest.mark.parametrize(
        ("data", "name", "message"),
        [
            (b'{"index": 1}\n{"index": \n', "x.jsonl", "line 2: This is not valid JSON"),
            (b'{"index": ' + b"9" * 5000 + b"}", "x.jsonl", "line 1: This is not valid JSON"),
            (b"[" * 100_000, "x.json", "line 1: This is not valid JSON"),
            (b"7", "x.json", "labels: Expected a list of features, got 7."),
            (b"index,label\n1,caf\xe9\n", "x.csv", "line 2: The text is not valid UTF-8 (byte 0xe9)"),
            ("index,label\n1,a\n".encode("utf-16"), "x.csv", "line 1: The text is not valid UTF-8"),
            (b'[\n{"index": 1,\n"label": "caf\xe9"}]', "x.json", "line 3: The text is not valid UTF-8"),
            (b"label\na\n", "x.csv", "line 1: The first line must name each column once"),
            (b"index,index\n1,1\n", "x.csv", "line 1: The first line must name each column once"),
            (b"index,label\n1,a,b\n", "x.csv", "line 2: The row has 3 cells, but the header has 2."),
            (b'index,label\n1,"a\n', "x.csv", "line 2: This is not valid CSV"),
            (b"index,density\n1,nan\n", "x.csv", "line 2.density: Expected a finite number"),
            (b"index\n1e3\n", "x.csv", "line 2.index: Expected an integer, got '1e3'."),
            (b"", "x.txt", "labels: x.txt must end with .json, .jsonl, .ndjson, .csv"),
            (b'{"index": 1}', "x.jsonl.gz", "labels: x.jsonl.gz is not gzipped"),
            (gzip.compress(b'{"index": 1}', mtime=0), "x.jsonl", "labels: x.jsonl is gzipped"),
            (gzip.compress(b'{"index": 1}' * 99, mtime=0)[:-9], "x.jsonl.gz", "labels: x.jsonl.gz is damaged"),
        ],
    )
    def test_files_that_are_something_else(self, data, name, message):
        assert problems(data, name)[0].startswith(message)

    def test_at_most_twenty_problems_are_listed(self):
        assert len(problems(lines(*[{"index": 99}] * 500))) == 20

    @pytest.mark.parametrize(
        ("limit", "data", "name"),
        [
            ("MAX_FILE_BYTES", lines({"index": 1}, {"index": 2}), "x.jsonl"),
            ("MAX_TEXT_BYTES", gzip.compress(lines({"index": 1}, {"index": 2}).encode(), mtime=0), "x.jsonl.gz"),
            ("MAX_LINE_BYTES", lines({"index": 1}, {"index": 2}), "x.jsonl"),
            ("MAX_JSON_BYTES", json.dumps([{"index": 1}]), "x.json"),
        ],
    )
    def test_sizes_are_bounded(self, limit, data, name, monkeypatch):
        assert parse(data, name).labels
        monkeypatch.setattr(label_files, limit, 10)
        assert "0 MiB" in problems(data, name)[0]

    def test_what_is_no_file_is_not_opened(self, tmp_path):
        with pytest.raises(InvalidSpecError, match="is not a file"):
            read_label_file(tmp_path, 40)


class TestImport:
    def test_replaces_what_it_names_and_leaves_the_rest(self, sae):
        import_labels(sae=sae, found=parse(lines(EXPLANATION | {"index": 0})))
        import_labels(sae=sae, found=parse(lines(STATISTICS)))
        first, fourth = sae.features.get(index=0), sae.features.get(index=3)
        assert (first.label, first.max_activation, first.top_tokens) == ("storms at sea", 4.0, [" rain", " storm"])
        assert first.label_source.startswith("Neuronpedia")
        assert (fourth.label, fourth.max_activation, fourth.density) == ("", 7.25, 0.004)
        assert fourth.decoder_norm is not None
        assert sae.features.count() == 40

    def test_examples_and_their_tokens(self, sae):
        report = import_labels(sae=sae, found=parse(lines(ACTIVATION)))
        feature = sae.features.get(index=3)
        assert feature.examples == [{"tokens": [" the", " storm"], "values": [0.0, 5.5]}]
        assert feature.top_tokens == [" storm"]
        assert (report.num_features, report.num_labels, report.num_examples) == (1, 0, 1)

    def test_labels_of_another_layer_are_doubted(self, sae):
        assert import_labels(sae=sae, found=parse(lines(EXPLANATION))).doubts == ()
        (doubt,) = import_labels(sae=sae, found=parse(lines(EXPLANATION | {"layer": "2-res-jb"}))).doubts
        assert "the SAE is at layer 1" in doubt

    def test_command(self, sae, tmp_path: Path, capsys):
        path = tmp_path / "batch-0.jsonl.gz"
        path.write_bytes(gzip.compress(lines(EXPLANATION).encode(), mtime=0))
        call_command("import_labels", "tiny-sae", str(path))
        assert "Imported 1 features: 1 labels, 0 examples." in capsys.readouterr().out
        assert sae.features.get(index=3).label == "storms at sea"

    def test_command_refuses_the_whole_file(self, sae, tmp_path: Path):
        path = tmp_path / "labels.jsonl"
        path.write_text(lines({"index": 3, "label": "storms"}, {"index": 99}, {"index": 4, "density": 9}))
        with pytest.raises(CommandError, match=r"line 2\.index.*\nline 3\.density"):
            call_command("import_labels", "tiny-sae", str(path))
        assert sae.features.get(index=3).label == ""

    @pytest.mark.parametrize(
        ("name", "file", "message"),
        [("none", "x.json", "The SAE none does not exist"), ("tiny-sae", "x.json", "No such file")],
    )
    def test_command_refuses(self, name, file, message, sae, tmp_path):
        with pytest.raises(CommandError, match=message):
            call_command("import_labels", name, str(tmp_path / file))


class TestAdmin:
    @pytest.fixture
    def admin(self, db: None) -> Client:
        client = Client()
        client.force_login(User.objects.create_superuser("admin"))
        return client

    def upload(self, client: Client, sae, text: str):
        file = SimpleUploadedFile("labels.jsonl", text.encode())
        return client.post(reverse("admin:steering_sae_labels", args=[sae.pk]), {"file": file})

    def test_upload(self, admin, sae):
        page = reverse("admin:steering_sae_change", args=[sae.pk])
        assert reverse("admin:steering_sae_labels", args=[sae.pk]) in admin.get(page).content.decode()
        assert self.upload(admin, sae, lines(EXPLANATION)).url == page
        assert "Imported 1 features" in admin.get(page).content.decode()
        assert sae.features.get(index=3).label == "storms at sea"

    def test_problems_stand_beside_the_field(self, admin, sae):
        html = self.upload(admin, sae, lines({"index": 3, "label": "x"}, {"index": 99})).content.decode()
        assert "line 2.index: Expected an integer from 0 to 39, got 99." in html
        assert sae.features.get(index=3).label == ""

    def test_needs_the_permission(self, sae):
        client = Client()
        client.force_login(User.objects.create_user("viewer", is_staff=True))
        assert self.upload(client, sae, lines(EXPLANATION)).status_code == 403

    def test_an_edited_label_is_its_editors(self, admin, sae):
        feature = sae.features.get(index=1)
        url = reverse("admin:steering_feature_change", args=[feature.pk])
        assert admin.post(url, {"label": "lions", "description": ""}).status_code == 302
        feature.refresh_from_db()
        assert (feature.label, feature.label_source) == ("lions", "admin, in the admin")
