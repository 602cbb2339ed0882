"""Requests resolve names to compiled versions without the database, and loading happens once."""

from __future__ import annotations

import asyncio
import shutil
import threading
import time
from pathlib import Path

import pytest
from asgiref.sync import async_to_sync

from core.runtime import runtime
from inference.client import ENGINE_CLIENT, LocalEngineClient
from inference.interventions import ReaderEdit, VectorEdit
from inference.models import LanguageModel
from inference.registry.records import model_table
from inference.steering_refs import SAESource
from steering import services
from steering.errors import ProfileModelMismatchError, ProfileNotFoundError, SAEUnavailableError
from steering.models import SAE, SteeringProfile
from steering.profiles import resolver as profile_resolver
from steering.profiles.compilation import ProfileCompiler
from steering.profiles.resolver import ProfileResolver, SteeringSelection
from steering.profiles.snapshot import published_profiles
from steering.sae_registry.cache import SAECache
from steering.sae_registry.files import load_source
from steering.sae_registry.registration import SAELocation
from steering.saes.loader import load_sae
from steering.saes.sae import SparseAutoencoder
from tests.database import in_thread
from tests.inference.fakes import FakeLoop
from tests.inference.pickling import PicklingClient
from tests.steering.edits import edit, identity
from tests.steering.resolving import intervention_of, local_resolver
from tests.steering.sae_files import random_weights, write_sae

SPECIAL = frozenset({0, 1})


class CountingLoader:
    """The real loader, slow enough for others to arrive meanwhile."""

    def __init__(self) -> None:
        self.loads: list[str] = []

    def __call__(self, source: SAESource) -> SparseAutoencoder:
        self.loads.append(source.name)
        time.sleep(0.02)
        return load_source(source)


@pytest.fixture
def loader() -> CountingLoader:
    return CountingLoader()


@pytest.fixture
def compiler(loader: CountingLoader) -> ProfileCompiler:
    return ProfileCompiler(loader)


@pytest.fixture
def resolver(compiler: ProfileCompiler) -> ProfileResolver:
    return local_resolver(compiler)


def publish(profile: SteeringProfile) -> None:
    """Publishes, and reads the snapshots as the commit would have done."""
    services.publish_profile(profile=profile)
    published_profiles.refresh()
    model_table.refresh()


@pytest.fixture
def warm(db: None) -> None:
    """After the fixtures named before it: async tests must find all in memory, as their database is out of reach."""
    published_profiles.refresh()
    model_table.refresh()


@pytest.fixture
def two_versions(profile: SteeringProfile) -> SteeringProfile:
    publish(profile)
    profile.edits.update(strength=0.25)
    publish(profile)
    return profile


@pytest.fixture
def two_saes(model: LanguageModel, sae: SAE, tmp_path: Path) -> None:
    """The profiles a and b, each of which reads through its own SAE."""
    location = SAELocation(str(write_sae(tmp_path / "second", weights=random_weights(5))))
    second = services.register_sae(name="second", model=model, location=location)
    for name, one in (("a", sae), ("b", second)):
        spec = edit("clamp", 1.0, sae=identity(one.checksum))
        publish(services.create_profile(name=name, model=model, edits=[spec]))


class TestReferences:
    async def test_name_means_the_newest(self, two_versions, resolver):
        resolved = await resolver.resolve("tiny", "gloomy", special_token_ids=SPECIAL)
        assert (resolved.name, resolved.number, resolved.label) == ("gloomy", 2, "gloomy@2")

    async def test_number_is_exact(self, two_versions, resolver):
        first = await resolver.resolve("tiny", "gloomy@1", special_token_ids=SPECIAL)
        second = await resolver.resolve("tiny", "gloomy@2", special_token_ids=SPECIAL)
        assert (first.number, second.number) == (1, 2)
        (one,), (other,) = intervention_of(first).edits, intervention_of(second).edits
        assert isinstance(one, VectorEdit)
        assert isinstance(other, VectorEdit)
        assert one.vector.tolist() == pytest.approx((2 * other.vector).tolist())

    async def test_intervention_is_complete(self, two_versions, resolver):
        resolved = await resolver.resolve("tiny", "gloomy@2", special_token_ids=SPECIAL)
        assert intervention_of(resolved).fingerprint == resolved.fingerprint
        assert intervention_of(resolved).skip_token_ids == SPECIAL
        vector = 0.25 * 4.0 * random_weights()["W_dec"][0]
        assert intervention_of(resolved).edits[0].vector.tolist() == pytest.approx(vector.tolist(), abs=1e-6)

    @pytest.mark.parametrize(
        ("reference", "message"),
        [
            ("nothing", "The model `tiny` has no published profile `nothing`."),
            ("gloomy@3", "The profile `gloomy` has no version 3; its latest version is 2."),
            ("gloomy@0", "has no version 0"),
            ("", "is not a valid profile reference"),
            ("gloomy@", "is not a valid profile reference"),
            ("gloomy@-1", "is not a valid profile reference"),
            ("gloomy@latest", "is not a valid profile reference"),
            ("gloomy@1@2", "is not a valid profile reference"),
            ("gloomy@" + "9" * 5000, "is not a valid profile reference"),
            ("../../etc/passwd", "is not a valid profile reference"),
            ("x" * 10**6, "is not a valid profile reference"),
            ("glöömy", "is not a valid profile reference"),
            ("gloomy\n", "is not a valid profile reference"),
            ("gloomy@١", "is not a valid profile reference"),
        ],
    )
    async def test_unknown(self, reference, message, two_versions, resolver):
        with pytest.raises(ProfileNotFoundError, match=message) as caught:
            await resolver.resolve("tiny", reference, special_token_ids=SPECIAL)
        assert (caught.value.status, caught.value.code, caught.value.param) == (404, "profile_not_found", "profile")
        assert len(caught.value.message) < 300

    async def test_draft_is_not_published(self, profile, warm, resolver):
        with pytest.raises(ProfileNotFoundError):
            await resolver.resolve("tiny", "gloomy", special_token_ids=SPECIAL)

    async def test_profile_of_another_model(self, two_versions, other_model, warm, resolver):
        with pytest.raises(ProfileModelMismatchError, match="does not belong to the model `other`") as caught:
            await resolver.resolve("other", "gloomy", special_token_ids=SPECIAL)
        assert (caught.value.status, caught.value.code) == (400, "profile_model_mismatch")

    async def test_newest_versions(self, two_versions, resolver):
        assert await resolver.newest("tiny") == [("gloomy", 2)]

    async def test_module_functions_use_this_process_snapshots_and_engine(self, two_versions):
        runtime.install(ENGINE_CLIENT, PicklingClient(LocalEngineClient(FakeLoop)))
        try:
            resolved = await profile_resolver.steer("tiny", SteeringSelection("gloomy"), special_token_ids=SPECIAL)
            assert await profile_resolver.list_published("tiny") == [("gloomy", 2)]
        finally:
            runtime.remove(ENGINE_CLIENT)
        assert resolved is not None
        assert resolved.label == "gloomy@2"


class TestSnapshots:
    def test_publishing_is_seen_after_commit(self, profile, resolver, django_capture_on_commit_callbacks):
        model_table.refresh()
        assert async_to_sync(resolver.newest)("tiny") == []
        with django_capture_on_commit_callbacks(execute=True):
            services.publish_profile(profile=profile)
        assert async_to_sync(resolver.newest)("tiny") == [("gloomy", 1)]

    async def test_resolution_asks_no_database(self, two_versions, resolver, django_db_blocker):
        with django_db_blocker.block():
            assert await resolver.resolve("tiny", "gloomy", special_token_ids=SPECIAL)

    async def test_what_a_request_holds_is_not_touched_by_later_edits(self, two_versions, resolver):
        resolved = await resolver.resolve("tiny", "gloomy", special_token_ids=SPECIAL)
        before = intervention_of(resolved).edits[0].vector.clone()
        await in_thread(published_profiles.forget)
        assert (intervention_of(resolved).edits[0].vector == before).all()


class TestLoading:
    async def test_crowd_loads_once(self, two_versions, resolver, loader):
        references = ["gloomy@1", "gloomy@2"] * 10
        resolved = await asyncio.gather(
            *(resolver.resolve("tiny", reference, special_token_ids=SPECIAL) for reference in references)
        )
        assert loader.loads == ["tiny-sae"]
        assert [one.number for one in resolved] == [1, 2] * 10

    async def test_compiled_interventions_are_shared(self, two_versions, resolver, compiler):
        one, other = [await resolver.resolve("tiny", "gloomy", special_token_ids=SPECIAL) for _ in range(2)]
        assert intervention_of(one, compiler) is intervention_of(other, compiler)
        different = await resolver.resolve("tiny", "gloomy", special_token_ids=frozenset())
        assert intervention_of(different, compiler).skip_token_ids == frozenset()

    async def test_missing_weights(self, two_versions, resolver, sae):
        shutil.rmtree(sae.source)
        with pytest.raises(SAEUnavailableError, match="`gloomy@2` was published with is not available") as caught:
            await resolver.resolve("tiny", "gloomy", special_token_ids=SPECIAL)
        assert (caught.value.status, caught.value.code) == (409, "sae_mismatch")
        assert sae.source not in caught.value.message

    async def test_exchanged_weights_are_not_used(self, two_versions, resolver, sae):
        write_sae(Path(sae.source), weights=random_weights(3))
        with pytest.raises(SAEUnavailableError):
            await resolver.resolve("tiny", "gloomy", special_token_ids=SPECIAL)

    async def test_failure_is_not_remembered(self, two_versions, resolver, sae):
        folder, away = Path(sae.source), Path(sae.source).with_name("away")
        shutil.move(folder, away)
        with pytest.raises(SAEUnavailableError):
            await resolver.resolve("tiny", "gloomy", special_token_ids=SPECIAL)
        shutil.move(away, folder)
        assert await resolver.resolve("tiny", "gloomy", special_token_ids=SPECIAL)

    async def test_forgotten_weights_take_their_interventions_along(self, two_saes, loader):
        one_sae_bytes = 4 * (2 * 12 * 40 + 2 * 40 + 12)
        compiler = ProfileCompiler(loader, max_sae_bytes=one_sae_bytes)
        resolver = local_resolver(compiler)
        for reference in ("a", "a", "b", "a"):
            resolved = await resolver.resolve("tiny", reference, special_token_ids=SPECIAL)
            assert isinstance(intervention_of(resolved, compiler).edits[0], ReaderEdit)
        assert loader.loads == ["tiny-sae", "second", "tiny-sae"]


class TestCache:
    @pytest.fixture
    def saes(self, tmp_path) -> list[SparseAutoencoder]:
        return [load_sae(write_sae(tmp_path / str(seed), weights=random_weights(seed))) for seed in range(3)]

    def test_least_recently_used_goes_first(self, saes):
        gone: list[str] = []
        cache = SAECache(2 * saes[0].num_bytes, gone.append)
        cache.get("0", lambda: saes[0])
        cache.get("1", lambda: saes[1])
        cache.get("0", lambda: saes[0])
        cache.get("2", lambda: saes[2])
        assert gone == ["1"]
        assert cache.num_bytes == 2 * saes[0].num_bytes

    def test_keeps_the_one_in_use_even_if_too_large(self, saes):
        cache = SAECache(1)
        assert cache.get("0", lambda: saes[0]) is cache.get("0", lambda: saes[1])

    def test_failed_load_can_be_tried_again(self, saes):
        cache = SAECache(1 << 20)

        def fail() -> SparseAutoencoder:
            raise OSError("gone")

        with pytest.raises(OSError, match="gone"):
            cache.get("0", fail)
        assert cache.get("0", lambda: saes[0]) is saes[0]

    def test_threads_load_once(self, saes: list[SparseAutoencoder]):
        cache = SAECache(1 << 20)
        loads: list[int] = []

        def load() -> SparseAutoencoder:
            loads.append(1)
            time.sleep(0.05)
            return saes[0]

        threads = [threading.Thread(target=cache.get, args=("0", load)) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(loads) == 1
