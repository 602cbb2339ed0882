"""Drop the rights of a process that parses untrusted files: other files, network and other processes.

Linux only, through system calls: Landlock blocks the file system, a seccomp filter blocks sockets and processes,
namespaces remove the network and root's capabilities, and root becomes `nobody` if `nobody` can read Python. Each is
used if the kernel supports and permits it; :func:`enter` returns the mechanisms in effect.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import platform
import struct
import sys
from collections.abc import Iterable
from pathlib import Path

NOBODY = 65_534
NEEDED = frozenset({"landlock", "seccomp"})  # without these a broken parser could read files or open sockets

_PACKAGES = ("core", "media", "storage")  # of ours that such processes import
_LIBRARIES = ("/usr/lib", "/usr/lib64", "/lib", "/lib64", "/usr/local/lib", "/nix/store")  # loaded when first needed
_PR_SET_PDEATHSIG, _PR_SET_SECCOMP, _PR_SET_NO_NEW_PRIVS = 1, 22, 38
_CLONE_NEWIPC, _CLONE_NEWUSER, _CLONE_NEWNET = 0x0800_0000, 0x1000_0000, 0x4000_0000
_LANDLOCK_CREATE, _LANDLOCK_ADD_RULE, _LANDLOCK_RESTRICT = 444, 445, 446  # on all architectures
_READ_FILE, _READ_DIR = 1 << 2, 1 << 3
_FILE_RIGHTS = {1: 13, 2: 14, 3: 15, 4: 15}  # number of rights that a version of Landlock knows; 16 from 5 on
_SECCOMP_MODE_FILTER = 2
_KILL, _ERRNO_EPERM, _ALLOW = 0x8000_0000, 0x0005_0001, 0x7FFF_0000
_LOAD, _EQUAL, _AT_LEAST, _RETURN = 0x20, 0x15, 0x35, 0x06
_X32 = 0x4000_0000  # bit of x86-64's x32 calls

# Sockets, other processes and their limits, mounts, modules, keys, shared memory; io_uring, which bypasses the filter.
_BOTH = (424, 425, 426, 427, 428, 429, 430, 431, 432, 434, 435, 438, 442)
_X86_64 = """
    29 30 41 42 43 44 45 46 47 48 49 50 53 56 57 58 59 62 64 68 101 141 155 161 165 166 167 169 175 200 234 240 246 248
    249 250 272 288 298 299 300 302 304 307 308 310 311 312 313 321 322 323
"""
_AARCH64 = """
    39 40 41 51 97 104 105 117 129 130 131 140 142 180 186 190 194 196 198 199 200 201 202 203 206 207 210 211 212 217
    218 219 220 221 224 241 242 243 261 262 265 268 269 270 271 272 273 280 281 282
"""
_MACHINES = {  # the kernel's number of the architecture, and the refused calls
    "x86_64": (0xC000_003E, (*map(int, _X86_64.split()), *_BOTH)),
    "aarch64": (0xC000_00B7, (*map(int, _AARCH64.split()), *_BOTH)),
}

_libc = ctypes.CDLL(None, use_errno=True)


def enter(readable: Iterable[Path] | None = None) -> list[str]:
    """Drop all rights that the kernel lets this process drop, and return the names of the mechanisms in effect.

    Open files stay open. Folders in ``readable`` stay readable: by default those that Python imports from.
    """
    folders = list(code_folders() if readable is None else readable)
    entered = []
    if os.geteuid() == 0 and all(map(is_public, code_folders())):
        os.setgroups([])
        os.setgid(NOBODY)
        os.setuid(NOBODY)
        entered.append("uid")
    _libc.prctl(_PR_SET_PDEATHSIG, 9, 0, 0, 0)  # after the change of user, which resets it
    if _libc.unshare(_CLONE_NEWUSER | _CLONE_NEWNET | _CLONE_NEWIPC) == 0:
        entered.append("namespaces")
    if _libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0:
        if _enter_landlock(folders):
            entered.append("landlock")
        if _enter_seccomp():  # last: it blocks the calls above
            entered.append("seccomp")
    return entered


def code_folders() -> list[Path]:
    """Return the folders of Python, the parsers with their libraries, and our modules."""
    project = Path(__file__).parents[1]
    places: tuple[str | Path, ...] = (sys.prefix, sys.base_prefix, *(project / name for name in _PACKAGES), *_LIBRARIES)
    return [place for place in {Path(place).resolve() for place in places} if place.exists()]


def is_public(folder: Path) -> bool:
    """Return whether every user may read ``folder``."""
    return bool(folder.stat().st_mode & 0o004) and all(
        place.stat().st_mode & 0o001 for place in (folder, *folder.parents)
    )


def _enter_landlock(folders: Iterable[Path]) -> bool:
    version = _libc.syscall(_LANDLOCK_CREATE, None, 0, 1)
    if version < 1:
        return False
    rights = (1 << _FILE_RIGHTS.get(version, 16)) - 1
    # File rights, TCP ports (from version 4 on), abstract sockets and signals (6). Handled without a rule: refused.
    attributes = struct.pack("=QQQ", rights, 0b11, 0b11)[: 8 if version < 4 else 16 if version < 6 else 24]
    rules = _libc.syscall(_LANDLOCK_CREATE, attributes, len(attributes), 0)
    if rules < 0:
        return False
    try:
        for folder in folders:
            with contextlib.suppress(OSError):  # a folder that this user cannot open needs no rule
                _allow_reading(rules, folder)
        return bool(_libc.syscall(_LANDLOCK_RESTRICT, rules, 0) == 0)
    finally:
        os.close(rules)


def _allow_reading(rules: int, folder: Path) -> None:
    descriptor = os.open(folder, os.O_PATH | os.O_CLOEXEC)
    try:
        rule = struct.pack("=Qi", _READ_FILE | _READ_DIR, descriptor)
        _libc.syscall(_LANDLOCK_ADD_RULE, rules, 1, rule, 0)
    finally:
        os.close(descriptor)


class _Program(ctypes.Structure):
    """The kernel's ``struct sock_fprog``."""

    _fields_ = (("length", ctypes.c_ushort), ("filter", ctypes.c_char_p))


def _enter_seccomp() -> bool:
    known = _MACHINES.get(platform.machine())
    if known is None or sys.maxsize < 2**32:
        return False
    code = _filter_of(*known, has_x32=platform.machine() == "x86_64")
    program = _Program(len(code) // 8, code)
    return bool(_libc.prctl(_PR_SET_SECCOMP, _SECCOMP_MODE_FILTER, ctypes.byref(program), 0, 0) == 0)


def _filter_of(machine: int, refused: Iterable[int], *, has_x32: bool) -> bytes:
    """Return a BPF program: calls of another architecture kill the process, refused calls return EPERM."""
    numbers = sorted(set(refused))
    steps = [(_LOAD, 0, 0, 4), (_EQUAL, 1, 0, machine), (_RETURN, 0, 0, _KILL), (_LOAD, 0, 0, 0)]
    tests = ([(_AT_LEAST, _X32)] if has_x32 else []) + [(_EQUAL, number) for number in numbers]
    for place, (test, value) in enumerate(tests):
        steps.append((test, len(tests) - place, 0, value))  # to the last step
    steps += [(_RETURN, 0, 0, _ALLOW), (_RETURN, 0, 0, _ERRNO_EPERM)]
    return b"".join(struct.pack("=HBBI", *step) for step in steps)
