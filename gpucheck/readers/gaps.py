"""Why something was not read: from the error that reading it raised to the reason of a gap."""

from __future__ import annotations

from gpucheck.facts import Gap, GapReason
from gpucheck.host import Host
from gpucheck.readers.environment import container
from gpucheck.text import say


def in_container(host: Host) -> bool:
    """Whether a container engine left its mark: Docker, Podman, Kubernetes, LXC."""
    return container(host) is not None


def reason_of(error: Exception) -> GapReason:
    """The reason that an OSError or a parse error stands for."""
    if isinstance(error, FileNotFoundError):
        return "file-absent"
    if isinstance(error, PermissionError):
        return "needs-root"
    if isinstance(error, TimeoutError):
        return "timed-out"
    return "unreadable"


def told(error: Exception) -> str:
    """The error in words, without the path, which the sentence around it names."""
    return (error.strerror if isinstance(error, OSError) else None) or str(error)


def not_read(host: Host, fact: str, path: str, error: Exception) -> Gap:
    """The gap for one path. What is absent inside a container may be there outside of it."""
    if isinstance(error, PermissionError):
        how = say("Read {path} as root: sudo cat {path}", path=path)
        return Gap(fact=fact, reason="needs-root", how=how)
    if isinstance(error, FileNotFoundError) and in_container(host):
        how = say("The container does not show {path}; run on the host.", path=path)
        return Gap(fact=fact, reason="in-container", how=how)
    how = say("{path}: {error}", path=path, error=told(error))
    return Gap(fact=fact, reason=reason_of(error), how=how)
