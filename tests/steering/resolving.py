"""Resolves profiles without an engine: compiles here what the engine's side would compile."""

from __future__ import annotations

import asyncio

from inference.interventions import Intervention
from inference.registry.records import model_table
from inference.steering_refs import SteeringRef, SteeringSpec
from steering.profiles.compilation import ProfileCompiler
from steering.profiles.resolver import ProfileResolver, ResolvedProfile
from tests.inference.pickling import sent


def local_resolver(compiler: ProfileCompiler | None = None) -> ProfileResolver:
    """A resolver with a compiler of its own. What it compiles and gets is pickled, as for a remote engine."""
    own = compiler or ProfileCompiler()

    async def compile_here(spec: SteeringSpec) -> SteeringRef:
        found = own.find(spec)
        compiled = await asyncio.to_thread(own.compile, sent(spec)) if found is None else found
        return sent(compiled.ref)

    return ProfileResolver(lambda name: model_table.get().find(name).pk, compile_here)


def intervention_of(resolved: ResolvedProfile, compiler: ProfileCompiler | None = None) -> Intervention:
    """What the engine's side makes of the profile."""
    return (compiler or ProfileCompiler()).compile(sent(resolved.steering.spec)).intervention
