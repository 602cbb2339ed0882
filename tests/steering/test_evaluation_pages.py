"""Reports and the admin pages around them: buttons, forms, files, text of strangers."""

from __future__ import annotations

import csv
import io
import json
import re
import xml.etree.ElementTree as ElementTree
from pathlib import Path
from typing import Any

import pytest
from django.contrib.auth.models import Permission, User
from django.core.management import CommandError, call_command
from django.test import Client
from django.urls import reverse
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from jobs.models import Job
from steering import services
from steering.evaluation.headline import RECIPE, headline_key
from steering.evaluation.plot import Plot
from steering.evaluation.recommendation import verdict
from steering.evaluation.report import pooled_controls, report_csv, report_html, report_json, report_page
from steering.models import Evaluation, HeadlineKL, ProfileVersion, SteeringProfile
from steering.spec.parsing import parse_edits
from steering.spec.rendering import fingerprint

EVIL = "<script>alert(1)</script>"
FORMULA = '=HYPERLINK("http://x")'
TEXTS = {"prompts": ["Tell me a story.", EVIL], "max_tokens": 8, "temperature": 1.0, "seed": 0}


def point(factor: float | None, **values: Any) -> dict[str, Any]:
    sample = {"prompt": EVIL, "text": f"{FORMULA} {EVIL}", "kl": 0.2, "failure": ""}
    return {
        "factor": factor,
        "strengths": [] if factor is None else [f"{EVIL}: add {factor}"],
        "push": factor,
        "kl": factor,
        "perplexity": 7.5,
        "repeat": 0.1,
        "distinct_1": 0.5,
        "distinct_2": 0.8,
        "words": None,
        "activation": 1.25,
        "active": 0.5,
        "num_tokens": 16,
        "failures": 0,
        "samples": [sample],
        **values,
    }


def sweep_result(**values: Any) -> dict[str, Any]:
    points = [point(None, kl=0.0), point(0.5), point(1.0), point(2.0, kl=None, failures=2)]
    common = {"version": "gloomy@1", "model": "tiny", "feature": EVIL, "words": [], "texts": TEXTS, "points": points}
    return common | values


def calibration_result(**proposal: Any) -> dict[str, Any]:
    curve = [{"factor": 0.5, "push": 0.05, "kl": 0.1}, {"factor": 0.75, "push": 0.075, "kl": 0.3}]
    found = {"factor": 0.75, "kl": 0.3, "is_met": True, "is_capped": False, "push": 0.075, "strengths": ["x"]}
    common = {"version": "gloomy@1", "model": "tiny", "target": 0.3, "push_cap": 0.6, "limit": 6.0, "num_tokens": 16}
    return {**common, "texts": TEXTS, "curve": curve, "proposal": found | proposal}


def comparison_result() -> dict[str, Any]:
    def answer(text: str, kl: float) -> dict[str, Any]:
        pieces = [[f"{word} ", kl] for word in text.split(" ")]
        return {"pieces": pieces, "kl": kl, "num_tokens": len(pieces), "finish_reason": "length", "failure": ""}

    pairs = [{"prompt": EVIL, "answers": [answer(f"{FORMULA} a sad rain", 0.5), answer(f"a happy {EVIL}", 3.9)]}]
    common = {"version": "gloomy@1", "other": "", "model": "tiny", "texts": TEXTS, "kl": [0.5, 3.9]}
    return {**common, "pairs": pairs}


RESULTS = {"sweep": sweep_result(), "calibration": calibration_result(), "comparison": comparison_result()}


@pytest.fixture
def version(profile: SteeringProfile) -> ProfileVersion:
    return services.publish_profile(profile=profile)


@pytest.fixture(params=RESULTS)
def evaluation(request: pytest.FixtureRequest, version: ProfileVersion) -> Evaluation:
    row = Evaluation.objects.create(kind=request.param, version=version, result=RESULTS[request.param])
    row.refresh_from_db()
    return row


@pytest.fixture
def admin(db: None) -> Client:
    return client_of(User.objects.create_superuser("root"))


def client_of(user: User) -> Client:
    client = Client(headers={"host": "localhost"})
    client.force_login(user)
    return client


def page(version: ProfileVersion, name: str = "change") -> str:
    return reverse(f"admin:steering_profileversion_{name}", args=[version.pk])


# Reports


def test_what_models_and_people_wrote_is_escaped(evaluation: Evaluation) -> None:
    for text in (report_html(evaluation), report_page(evaluation)):
        assert EVIL not in text
        assert "<script" not in text


def test_each_site_has_a_column_for_the_relative_size(version: ProfileVersion) -> None:
    pushes = {"layers.1.resid_post": 0.25, "layers.2.mlp_out": 0.5}
    points = [point(None, pushes={}), point(1.0, push=0.5, pushes=pushes)]
    row = Evaluation.objects.create(kind="sweep", version=version, result=sweep_result(points=points))
    header, unsteered, steered = list(csv.reader(io.StringIO(report_csv(row))))
    sizes = [header.index(f"relative size, {site}") for site in ("layer 1 (resid_post)", "layer 2 (mlp_out)")]
    assert [steered[place] for place in sizes] == ["0.25", "0.5"]
    assert [float(unsteered[place]) for place in sizes] == [0.0, 0.0]
    assert "added up" in report_html(row)


def test_the_file_needs_nothing_beside_it(evaluation: Evaluation) -> None:
    text = report_page(evaluation)
    assert text.startswith("<!doctype html>")
    assert not re.search(r'(?:src|href)="(?!#)', text)
    assert "url(" not in text
    assert "prefers-color-scheme: dark" in text
    assert ".evaluation-plot" in text


def test_no_cell_is_a_formula(evaluation: Evaluation) -> None:
    rows = list(csv.reader(io.StringIO(report_csv(evaluation))))
    assert len(rows) > 1
    assert len({len(row) for row in rows}) == 1
    assert not [cell for row in rows for cell in row if cell[:1] in ("=", "+", "-", "@", "\t", "\r")]


def test_the_json_is_what_was_measured(evaluation: Evaluation) -> None:
    value = json.loads(report_json(evaluation))
    assert value["kind"] == evaluation.kind
    assert {name: value[name] for name in evaluation.result} == evaluation.result


def test_a_sweep_shows_every_strength_and_plots_what_is_known(version: ProfileVersion) -> None:
    row = Evaluation(kind="sweep", version=version, result=sweep_result())
    text = report_html(row)
    assert text.count("<svg") == 6, "KL, perplexity, repeats, distinct-1 and -2, activation; no words were given"
    assert "No steering" in text
    for factor in ("0.5", "1", "2"):
        assert f">{factor} × the strength</h3>" in text
    assert text.count('class="dot"') == 2 + 5 * 3, "the strength without a KL has none in that plot"


def test_figures_are_rounded_as_people_read_them(version: ProfileVersion) -> None:
    """Sums and bisections leave seventeen digits, of which the files have all."""
    odd = 0.1 + 0.2
    sweep = sweep_result(points=[point(odd, strengths=[])])
    calibration = {**calibration_result(), "target": odd, "push_cap": odd}
    for kind, result in (("sweep", sweep), ("calibration", calibration)):
        text = report_html(Evaluation(kind=kind, version=version, result=result))
        assert str(odd) not in text
        assert "0.3" in text


@pytest.mark.parametrize(
    ("proposal", "said"),
    [
        ({}, "The target is met at 0.7500 × the strength"),
        ({"is_met": False, "is_capped": True}, "out of reach under the cap"),
        ({"is_met": False}, "No strength meets the target"),
        ({"is_met": False, "kl": None}, "No strength was found at which the model stays in range"),
    ],
)
def test_a_calibration_says_how_it_ended(version: ProfileVersion, proposal: dict[str, Any], said: str) -> None:
    assert said in report_html(Evaluation(kind="calibration", version=version, result=calibration_result(**proposal)))


def test_a_comparison_marks_tokens_and_differences(version: ProfileVersion) -> None:
    text = report_html(Evaluation(kind="comparison", version=version, result=comparison_result()))
    assert 'class="kl-1" title="0.500 nats"' in text
    assert 'class="kl-4" title="3.900 nats"' in text
    assert "<del>" in text
    assert "<ins>" in text
    assert "no profile" in text


coordinates = st.floats(-1e9, 1e9).map(lambda value: round(value, 6))


@given(st.lists(st.tuples(coordinates, coordinates), min_size=1, max_size=20), st.none() | coordinates)
def test_plots_are_well_formed_and_stay_inside(points: list[tuple[float, float]], level: float | None) -> None:
    svg = ElementTree.fromstring(Plot("KL <&>", "× strength", tuple(points), level).svg())  # noqa: S314 - our own
    _, _, width, height = (float(value) for value in svg.attrib["viewBox"].split())
    dots = [element.attrib for element in svg.iter("circle")]
    assert len(dots) == len(points)
    assert all(0 <= float(dot["cx"]) <= width and 0 <= float(dot["cy"]) <= height for dot in dots)


def y_ticks(*values: float) -> list[str]:
    svg = ElementTree.fromstring(Plot("a share", "× strength", tuple(enumerate(values))).svg())  # noqa: S314 - our own
    return [str(element.text) for element in svg.iter("text") if element.attrib["class"] == "tick y"]


def test_one_value_all_along_is_drawn_from_zero() -> None:
    assert y_ticks(0.0, 0.0) == ["0", "0.2", "0.4", "0.6", "0.8", "1"]
    assert (y_ticks(3.0, 3.0)[0], y_ticks(-2.0, -2.0)[-1]) == ("0", "0")


def test_large_numbers_are_written_out() -> None:
    assert y_ticks(0.0, 178_324.0)[-1] == "200,000"


def test_no_points_make_no_plot() -> None:
    assert Plot("KL", "x", ()).svg() == ""


# Pages


def test_the_versions_page_has_buttons_and_reports(admin: Client, evaluation: Evaluation) -> None:
    assert evaluation.version is not None
    text = admin.get(page(evaluation.version)).content.decode()
    for name in ("sweep", "calibrate", "compare"):
        assert page(evaluation.version, name) in text
    assert reverse("admin:steering_evaluation_change", args=[evaluation.pk]) in text


@pytest.mark.parametrize(
    ("name", "values", "kind"),
    [
        (
            "sweep",
            {
                "factors": "0.5, 1 2",
                "words": "rain, sad",
                "random_directions": "4",
                "control_system_prompt": " Be sad. ",
                "off_target": "on",
            },
            "steering.sweep",
        ),
        ("calibrate", {"target": "0.1", "push_cap": "0.6"}, "steering.calibrate"),
        ("compare", {"other": ""}, "steering.compare"),
    ],
)
def test_forms_enqueue_jobs(
    admin: Client, version: ProfileVersion, name: str, values: dict[str, str], kind: str
) -> None:
    assert admin.get(page(version, name)).status_code == 200
    common = {"prompts": "One.\n\n Two. \n", "max_tokens": "8", "temperature": "0.5", "seed": "7"}
    answer = admin.post(page(version, name), {**common, **values})
    job = Job.objects.get()
    assert answer.headers["Location"] == reverse("admin:jobs_job_change", args=[job.pk])
    assert (job.kind, job.owner) == (kind, User.objects.get(username="root"))
    texts = {"prompts": ["One.", "Two."], "max_tokens": 8, "temperature": 0.5, "seed": 7, "samples_per_prompt": 1}
    assert (job.params["version"], job.params["texts"]) == (version.pk, texts)
    if name == "sweep":
        assert (job.params["factors"], job.params["words"]) == ([0.5, 1.0, 2.0], ["rain", "sad"])
        assert job.params["controls"] == {
            "random_directions": 4,
            "random_features": 0,
            "system_prompt": "Be sad.",
            "off_target": True,
        }


@pytest.mark.parametrize(
    ("name", "values", "said"),
    [
        ("sweep", {"factors": "much"}, "Expected numbers"),
        ("sweep", {"factors": "nan"}, "must be between"),
        ("sweep", {"factors": "1", "prompts": " \n "}, "required"),
        ("sweep", {"factors": "1", "max_tokens": "100000"}, "max_tokens must be between"),
        ("sweep", {"factors": "1", "samples_per_prompt": "17"}, "samples_per_prompt must be between"),
        ("sweep", {"factors": "1", "random_directions": "-1"}, "random_directions must be between"),
        ("calibrate", {"target": "0", "push_cap": "1"}, "target must be between"),
        ("calibrate", {"target": "inf", "push_cap": "1"}, "Enter a number"),
        ("compare", {"other": "999999"}, "Select a valid choice"),
    ],
)
def test_bad_input_is_said_in_the_form(
    admin: Client, version: ProfileVersion, name: str, values: dict[str, str], said: str
) -> None:
    common = {"prompts": "One.", "max_tokens": "8", "temperature": "0.5", "seed": "7"}
    answer = admin.post(page(version, name), {**common, **values})
    assert answer.status_code == 200
    assert said in answer.content.decode()
    assert not Job.objects.exists()


@pytest.mark.parametrize("ending", ["html", "json", "csv"])
def test_reports_are_downloaded(admin: Client, evaluation: Evaluation, ending: str) -> None:
    answer = admin.get(reverse("admin:steering_evaluation_file", args=[evaluation.pk, ending]))
    assert answer.status_code == 200
    disposition = answer.headers["Content-Disposition"]
    assert disposition == f'attachment; filename="{evaluation.kind}-gloomy-1-{evaluation.pk}.{ending}"'
    assert admin.get(reverse("admin:steering_evaluation_file", args=[evaluation.pk, "exe"])).status_code == 404
    assert admin.get(reverse("admin:steering_evaluation_file", args=[10**6, ending])).status_code == 404


def test_the_report_is_a_page_of_the_admin(admin: Client, evaluation: Evaluation) -> None:
    text = admin.get(reverse("admin:steering_evaluation_change", args=[evaluation.pk])).content.decode()
    assert '<div class="evaluation">' in text
    assert EVIL not in text
    assert ("Apply to draft" in text) == (evaluation.kind == "calibration")
    assert admin.get(reverse("admin:steering_evaluation_changelist")).status_code == 200


def test_a_proposal_becomes_the_draft(admin: Client, version: ProfileVersion) -> None:
    row = Evaluation.objects.create(kind="calibration", version=version, result=calibration_result(factor=0.5))
    use = reverse("admin:steering_evaluation_use", args=[row.pk])
    assert admin.get(use).status_code == 405
    admin.post(use)
    assert version.profile.edits.get().strength == 0.25, "half of 0.5"


def test_a_sweep_proposes_nothing(admin: Client, version: ProfileVersion) -> None:
    row = Evaluation.objects.create(kind="sweep", version=version, result=sweep_result())
    answer = admin.post(reverse("admin:steering_evaluation_use", args=[row.pk]), follow=True)
    assert "has no strengths to apply" in answer.content.decode()


def test_a_profile_s_page_leads_to_evaluations_of_its_newest_version(admin: Client, version: ProfileVersion) -> None:
    of_profile = reverse("admin:steering_steeringprofile_change", args=[version.profile_id])
    html = admin.get(of_profile).content.decode()
    for name in ("sweep", "calibrate"):
        assert f'href="{page(version, name)}"' in html
        assert "your prompts" in admin.get(page(version, name)).content.decode()
    viewer = User.objects.create_user("viewer", is_staff=True)
    viewer.user_permissions.set(Permission.objects.filter(codename__in=("view_steeringprofile",)))
    viewer.groups.set([])
    version.profile.owner = viewer
    version.profile.save()
    assert "Sweep…" not in client_of(viewer).get(of_profile).content.decode()


def test_who_only_looks_cannot_evaluate_or_use(version: ProfileVersion) -> None:
    viewer = User.objects.create_user("viewer", is_staff=True)
    names = ("view_profileversion", "view_evaluation")
    viewer.user_permissions.set(Permission.objects.filter(codename__in=names))
    row = Evaluation.objects.create(kind="calibration", version=version, result=calibration_result())
    client = client_of(viewer)
    assert "Sweep…" not in client.get(page(version)).content.decode()
    assert client.get(page(version, "sweep")).status_code == 403
    assert client.post(reverse("admin:steering_evaluation_use", args=[row.pk])).status_code == 403
    assert client.get(reverse("admin:steering_evaluation_file", args=[row.pk, "csv"])).status_code == 200
    stranger = client_of(User.objects.create_user("stranger", is_staff=True))
    assert stranger.get(reverse("admin:steering_evaluation_file", args=[row.pk, "csv"])).status_code == 403
    assert not Job.objects.exists()


# The headline KL


def test_the_headline_kl_is_on_the_version_s_page_and_in_its_reports(admin: Client, version: ProfileVersion) -> None:
    recipe = reverse("admin:steering_evaluation_recipe")
    assert "not measured yet" in admin.get(page(version)).content.decode()
    found = keep_headline(version, 0.3125, 0.25, 0.5)
    html = admin.get(page(version)).content.decode()
    assert "0.312 (0.25 to 0.5) nats per token" in html
    assert f'href="{recipe}"' in html
    assert "KL(base‖steered)" in admin.get(recipe).content.decode()

    headline = {"kl": 0.3125, "low": 0.25, "high": 0.5, "recipe": RECIPE, "text": str(found)}
    for kind, result in (
        ("sweep", sweep_result(headline=headline)),
        ("calibration", {**calibration_result(), "headline": headline}),
        ("comparison", {**comparison_result(), "headlines": [headline, None]}),
    ):
        text = report_html(Evaluation(kind=kind, version=version, result=result))
        assert "Headline KL of gloomy@1: <strong>0.312 (0.25 to 0.5) nats per token</strong>" in text
    for result in RESULTS.values():
        assert "headline" not in result, "reports of earlier versions have none"


def test_a_profile_s_page_shows_what_was_measured_and_measures(admin: Client, version: ProfileVersion) -> None:
    profile = version.profile
    change = reverse("admin:steering_steeringprofile_change", args=[profile.pk])
    measure = reverse("admin:steering_steeringprofile_measure", args=[profile.pk])

    def rows() -> list[str]:
        html = admin.get(change).content.decode()
        part = html.partition('id="evidence"')[2].partition("</table>")[0].partition("<tbody>")[2]
        return [re.sub(r"<[^>]+>|\s+", " ", row) for row in part.split("</tr>")[:-1]]

    (live,) = rows()  # the draft has the same effect
    assert "gloomy@1" in live
    assert "not measured yet" in live
    assert "no sweep yet" in live
    assert admin.get(measure).status_code == 405
    admin.post(measure, {"target": "version"})
    assert Job.objects.get().params == {"version": version.pk}

    keep_headline(version, 0.3125, 0.25, 0.5)
    found = {"factor": 0.5, "is_found": True, "effect": "words", "is_split": True, "reason": "Because."}
    Evaluation.objects.create(kind="sweep", version=version, result=sweep_result(recommendation=found))
    profile.edits.update(strength=0.25)
    live, draft = rows()
    assert "0.312 (0.25 to 0.5) nats per token" in live
    assert "0.5 × the strength" in live
    assert "Measure " not in live
    assert "Draft" in draft
    assert "not measured yet" in draft
    admin.post(measure, {"target": "draft"})
    sent = Job.objects.latest("created_at").params["version"]
    assert (sent["profile"], sent["label"]) == (profile.pk, "gloomy@draft")
    key = headline_key(profile.model, fingerprint(parse_edits(sent["edits"])))
    HeadlineKL.objects.create(**key, kl=0.125, low=0.1, high=0.2, result={})
    assert "0.125 (0.1 to 0.2) nats per token" in rows()[1]

    profile.edits.all().delete()
    assert len(rows()) == 1, "a draft without edits cannot be measured"
    answer = admin.post(measure, {"target": "draft"}, follow=True)
    assert "has no edits" in answer.content.decode()


def test_only_editors_measure(version: ProfileVersion) -> None:
    viewer = User.objects.create_user("eve", is_staff=True)
    viewer.user_permissions.add(*Permission.objects.filter(codename__in=("view_steeringprofile", "see_all_profiles")))
    url = reverse("admin:steering_steeringprofile_measure", args=[version.profile.pk])
    assert client_of(viewer).post(url, {"target": "version"}).status_code == 403
    assert not Job.objects.exists()


def keep_headline(version: ProfileVersion, kl: float | None, low: float, high: float) -> HeadlineKL:
    key = headline_key(version.profile.model, version.fingerprint)
    return HeadlineKL.objects.create(**key, kl=kl, low=low, high=high, result={})


# The report of a sweep with controls


def full_sweep() -> dict[str, Any]:
    rows = {"prompt": [0, 1], "sample": [0, 0], "tokens": [8, 8], "kl": [1.0, 2.0], "logprob": [-9.0, -8.0]}
    known = {"kl_base": 0.4, "success": 1.0, "intervals": {"kl_base": [0.2, 0.6], "perplexity": [6.0, 9.0]}}
    known |= {"answers": {**rows, "base_tokens": [8, 8], "kl_base": [3.0, 3.4]}}
    controls = [
        point(1.0, kind="random_direction", name="random direction 1", **known),
        point(1.0, kind="random_direction", name="random direction 2", **known),
        point(None, kind="system_prompt", name="system prompt", **known),
    ]
    found = {"factor": 0.5, "effect": "kl_base", "is_found": True, "is_split": True, "reason": f"Because {EVIL}."}
    unsteered = point(None, kind="unsteered", name="no steering", **{**known, "kl_base": 0.0})
    points = [unsteered, point(0.5, **known), point(1.0, **{**known, "kl_base": 0.9})]
    off_target = {"with": [0.5, 0.4, 0.6], "without": [0.75, 0.7, 0.8], "difference": [-0.25, -0.3, -0.2]}
    return sweep_result(
        points=points,
        controls=controls,
        recommendation=found,
        off_target={**off_target, "num_questions": 64, "rows": []},
        judge={"model": EVIL, "concept": EVIL},
    )


def test_a_recommendation_needs_an_effect(version: ProfileVersion) -> None:
    found = {"is_found": True, "factor": 0.5, "gain": [0.2, 0.1, 0.3]}
    assert verdict(found) == "Recommended: 0.5 × the strength"
    assert verdict({**found, "gain": [0.2, -0.1, 0.3]}) == "No effect is shown"
    assert verdict({**found, "is_found": False}) == "No strength qualifies"
    result = full_sweep()
    result["recommendation"] |= {"gain": [0.0, 0.0, 0.0]}
    text = report_html(Evaluation(kind="sweep", version=version, result=result))
    assert "<strong>No effect is shown.</strong>" in text
    assert 'class="recommendation is-open"' in text
    assert "Recommended:" not in text


def test_a_sweep_recommends_and_shows_its_controls(version: ProfileVersion) -> None:
    text = report_html(Evaluation(kind="sweep", version=version, result=full_sweep()))
    assert EVIL not in text
    for words in (
        "Recommended: 0.5 × the strength.",
        "50.0% (40.0% to 60.0%) of 64 questions right",
        "random directions (n = 2)",
        "A random directions (n = 2)",
        "B system prompt",
        "C recommended",
        "0.4 (0.2 to 0.6)",
    ):
        assert words in text, words
    assert text.count('type="radio"') == 5, "one of the random directions is enough for samples"
    assert re.search(r'id="samples-2" checked', text)
    assert 'class="best"' in text


def test_pooled_random_directions_have_the_answers_of_all(version: ProfileVersion) -> None:
    row = Evaluation.objects.create(kind="sweep", version=version, result=full_sweep())
    (pooled, _) = pooled_controls(row.result["controls"])
    assert (pooled["num_tokens"], pooled["kl_base"]) == (32, pytest.approx(0.4))
    rows = list(csv.reader(io.StringIO(report_csv(row))))
    assert [cells[0] for cells in rows[4:]] == ["random direction 1", "random direction 2", "system prompt"]


def test_plots_are_downloaded_as_a_picture(admin: Client, version: ProfileVersion) -> None:
    for kind, result in (("sweep", full_sweep()), ("sweep", sweep_result()), ("calibration", calibration_result())):
        row = Evaluation.objects.create(kind=kind, version=version, result=result)
        answer = admin.get(reverse("admin:steering_evaluation_file", args=[row.pk, "png"]))
        assert answer.headers["Content-Type"] == "image/png"
        with Image.open(io.BytesIO(answer.content)) as picture:
            assert picture.size[0] > 1_000
            assert len(picture.convert("RGB").getcolors(1 << 20) or ()) > 5
    row = Evaluation.objects.create(kind="comparison", version=version, result=comparison_result())
    assert admin.get(reverse("admin:steering_evaluation_file", args=[row.pk, "png"])).status_code == 404


@given(st.lists(st.tuples(st.floats(1e-6, 1e6), st.floats(1e-6, 1e6)), min_size=1, max_size=8))
def test_logarithmic_axes_keep_points_inside(points: list[tuple[float, float]]) -> None:
    svg = ElementTree.fromstring(Plot("KL", "x", tuple(points), log_x=True, log_y=True).svg())  # noqa: S314 - our own
    _, _, width, height = (float(value) for value in svg.attrib["viewBox"].split())
    for dot in svg.iter("circle"):
        assert 0 <= float(dot.attrib["cx"]) <= width
        assert 0 <= float(dot.attrib["cy"]) <= height


# Commands


def test_the_command_enqueues(version: ProfileVersion, capsys: pytest.CaptureFixture[str]) -> None:
    call_command("evaluate_profile", "sweep", "gloomy@1", model="tiny", strengths="0.5,1", no_wait=True)
    call_command("evaluate_profile", "calibrate", "gloomy@1", model="tiny", target="subtle", no_wait=True)
    call_command("evaluate_profile", "compare", "gloomy@1", model="tiny", no_wait=True)
    assert capsys.readouterr().out.count("Queued job") == 3
    jobs = {job.kind: job.params for job in Job.objects.all()}
    assert jobs["steering.sweep"]["factors"] == [0.5, 1.0]
    assert jobs["steering.calibrate"]["target"] == 0.1
    assert jobs["steering.compare"]["other"] is None


def test_a_quick_sweep_is_small_unless_more_is_asked_for(version: ProfileVersion) -> None:
    sent: list[dict[str, Any]] = []
    for options in ({}, {"quick": True}, {"quick": True, "max_tokens": 50, "off_target": True, "strengths": "3"}):
        call_command("evaluate_profile", "sweep", "gloomy@1", model="tiny", no_wait=True, **options)
        sent.append(Job.objects.latest("created_at").params)
    full, quick, mixed = sent
    assert [len(one["texts"]["prompts"]) for one in sent] == [64, 8, 8]
    assert [one["texts"]["max_tokens"] for one in sent] == [64, 24, 50]
    assert [len(one["factors"]) for one in sent] == [6, 2, 1]
    assert [one["controls"]["random_directions"] for one in sent] == [8, 2, 2]
    assert [one["controls"]["off_target"] for one in sent] == [True, False, True]
    assert full["texts"]["prompts"][:8] == quick["texts"]["prompts"]
    assert mixed["factors"] == [3.0]


@pytest.mark.parametrize(
    ("arguments", "options", "said"),
    [
        (("sweep", "gloomy@9"), {}, "no version gloomy@9"),
        (("sweep", "gloomy"), {}, "no version gloomy"),
        (("sweep", "gloomy@1"), {"strengths": "x"}, "Expected numbers"),
        (("calibrate", "gloomy@1"), {"target": "huge"}, "Expected numbers"),
        (("calibrate", "gloomy@1"), {"target": "1,2"}, "must be a number or one of"),
        (("sweep", "gloomy@1"), {"output": "report.pdf"}, "file must end with"),
    ],
)
def test_the_command_refuses_with_a_sentence(
    version: ProfileVersion, arguments: tuple[str, ...], options: dict[str, Any], said: str
) -> None:
    if "output" in options:
        options = {"output": Path(options["output"])}
    with pytest.raises(CommandError, match=said):
        call_command("evaluate_profile", *arguments, model="tiny", no_wait=True, **options)
    assert not Job.objects.exists()
