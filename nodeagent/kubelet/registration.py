"""Decides when the device plugin registers with the kubelet again. Pure.

The kubelet asks the plugin that registered a resource last. It does not notify the plugin that it asked before, and
ends none of that plugin's calls. When a call ListAndWatch of either plugin ends, the kubelet no longer asks any plugin,
not even the one whose call is still open (k8s.io/kubernetes, pkg/kubelet/cm/devicemanager: PluginConnected,
PluginDisconnected). So a plugin has to check for itself whether the kubelet asks it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Final

UNFOLLOWED_SECONDS: Final = 10.0
"""The time that the kubelet has to call back after a registration: it connects and asks for options first. Until it has
the plugin's list of slots, its checkpoint file and its Node still show the slots from before."""
IN_FLIGHT_SECONDS: Final = 2.0
"""The time after a registration for which an answer of another plugin counts as earlier than the registration: the
kubelet may have asked that plugin just before, and writes its file afterwards."""
HIDDEN_SECONDS: Final = 60.0
"""The time for which the Node must show other slots before that counts as a loss. The kubelet checks every 10 seconds
whether its Node's status must be written, or less often if it is set so, and cannot write it while the API server is
away. A status that was not written since says nothing about the slots that the kubelet has."""
FIRST_DELAY_SECONDS: Final = 10.0
LAST_DELAY_SECONDS: Final = 300.0
"""The least time between two registrations with one kubelet. It doubles from FIRST_DELAY_SECONDS to LAST_DELAY_SECONDS,
so that two plugins that both want the resource do not take turns fast. After a registration that lasted for twice
LAST_DELAY_SECONDS, it is FIRST_DELAY_SECONDS again."""
_SLOT: Final = re.compile(r"slot-\d+")

Identity = tuple[int, int]
"""The identity of the kubelet's socket."""
Holder = tuple[str, str]
"""A pod's uid, and the name of its container."""


class Loss(StrEnum):
    """The reasons why the kubelet does not ask this device plugin."""

    UNREGISTERED = "unregistered"
    """It has not registered yet with the kubelet that runs now, or its socket was removed, or no kubelet runs."""
    TAKEN = "taken"
    """Another plugin has registered the same resource since."""
    UNFOLLOWED = "unfollowed"
    """The kubelet has ended the call by which it follows the slots."""
    HIDDEN = "hidden"
    """The Node does not show the slots, though the kubelet follows them: a call of another plugin has ended."""


@dataclass(frozen=True)
class Look:
    """The kubelet and the device plugin as the agent sees them at one time.

    Attributes:
        kubelet: the inode and change time of the kubelet's socket, which identify the kubelet; None if there is none.
        is_served: whether the plugin listens on its socket.
        is_followed: whether the kubelet's call that follows the slots is open.
        is_shown: whether the Node shows all slots that are offered.
        foreign: the ids of the resource's slots in the kubelet's file that are not this plugin's.
        written: the time at which the kubelet last wrote the Node's status, as the Node's own text; it differs between
            any two statuses, and is empty if the Node does not state it.
        answered: each container whose slots another plugin allocated according to the kubelet's file, as its pod's uid
            and its name.
    """

    kubelet: Identity | None
    is_served: bool = True
    is_followed: bool = True
    is_shown: bool = True
    foreign: tuple[str, ...] = ()
    written: str = ""
    answered: frozenset[Holder] = frozenset()


@dataclass(frozen=True)
class Registration:
    """The plugin's last registration with the kubelet, and the signs since then of which plugin the kubelet uses.

    Times are seconds of a monotonic clock.

    Attributes:
        kubelet: the identity of the socket of the kubelet that was registered with; None before the first registration,
            and after one that failed.
        at_seconds: the time of the last attempt to register.
        delay_seconds: the least time from `at_seconds` to the next attempt with the same kubelet.
        followed_seconds: when the kubelet last followed the slots.
        shown_seconds: when the Node last showed the slots.
        written: `Look.written` of the last status of the Node that showed the slots. If none has, it is that of the
            status that stood when the kubelet's time to call back was over.
        answered: each container whose slots another plugin had allocated by IN_FLIGHT_SECONDS after this registration,
            as its pod's uid and its name.
        foreign: another plugin's slots in the kubelet's file at the registration.
        is_listed: whether the kubelet's file has shown no other plugin's slots since.
        is_taken: whether another plugin has registered since, so that the kubelet asks that one. It stays until the
            next registration, even if the kubelet's file and the Node show this plugin's slots again.
    """

    kubelet: Identity | None = None
    at_seconds: float = float("-inf")
    delay_seconds: float = FIRST_DELAY_SECONDS
    followed_seconds: float = float("-inf")
    shown_seconds: float = float("-inf")
    written: str = ""
    answered: frozenset[Holder] = frozenset()
    foreign: tuple[str, ...] = ()
    is_listed: bool = False
    is_taken: bool = False


def foreign_slots(ids: Iterable[str]) -> tuple[str, ...]:
    """Returns the slot ids, sorted, that do not have the form of this plugin's ids (`nodeagent.offer.slot_ids`)."""
    return tuple(sorted(each for each in ids if not _SLOT.fullmatch(each)))


def observed(registration: Registration, look: Look, now_seconds: float) -> Registration:
    """Returns the last registration, with the signs added that the kubelet uses this plugin, or another in its place.

    Slots of another plugin of the same resource in the kubelet's checkpoint file are a sign that the other registered
    later. Slots that were in the file at this registration are no sign until the file has been without them, or the
    kubelet has had time to call this plugin. An allocation by another plugin is a sign if it appears in the file later
    than IN_FLIGHT_SECONDS after this registration.

    Args:
        registration: the last registration, as `observed` returned it at the look before.
        look: the kubelet and the plugin as they are now.
        now_seconds: the present time, in seconds of a monotonic clock.
    """
    if now_seconds - registration.at_seconds < IN_FLIGHT_SECONDS:
        registration = replace(registration, answered=registration.answered | look.answered)
    is_new = now_seconds - registration.at_seconds < UNFOLLOWED_SECONDS
    is_since = registration.is_listed or not is_new or not {*look.foreign} <= {*registration.foreign}
    return replace(
        registration,
        followed_seconds=now_seconds if look.is_followed else registration.followed_seconds,
        shown_seconds=now_seconds if look.is_shown else registration.shown_seconds,
        written=look.written if look.is_shown or is_new or not registration.written else registration.written,
        is_listed=registration.is_listed or not look.foreign,
        is_taken=registration.is_taken
        or (is_since and bool(look.foreign))
        or not look.answered <= registration.answered,
    )


def loss(registration: Registration, look: Look, now_seconds: float) -> Loss | None:
    """Returns why the kubelet does not ask this device plugin; None if there is no sign of that.

    Args:
        registration: the last registration, as `observed` returned it for this look.
        look: the kubelet and the plugin as they are now.
        now_seconds: the present time, in seconds of a monotonic clock.
    """
    if look.kubelet is None or look.kubelet != registration.kubelet or not look.is_served:
        return Loss.UNREGISTERED
    if registration.is_taken:
        return Loss.TAKEN
    if now_seconds - max(registration.followed_seconds, registration.at_seconds) >= UNFOLLOWED_SECONDS:
        return Loss.UNFOLLOWED
    hidden_seconds = now_seconds - max(registration.shown_seconds, registration.at_seconds)
    if hidden_seconds >= HIDDEN_SECONDS and look.written != registration.written:
        return Loss.HIDDEN
    return None


def is_due(registration: Registration, lost: Loss | None, now_seconds: float) -> bool:
    """Returns whether the device plugin must register with the kubelet now.

    It registers at once if the loss is UNREGISTERED, such as with a kubelet that has just started, and after any other
    loss once the delay has passed.

    Args:
        registration: the last registration.
        lost: the reason why the kubelet does not ask the plugin (`loss`); None if it does.
        now_seconds: the present time, in seconds of a monotonic clock.
    """
    if lost is None or lost is Loss.UNREGISTERED:
        return lost is not None
    return now_seconds - registration.at_seconds >= registration.delay_seconds


def registered(registration: Registration, look: Look, lost: Loss, now_seconds: float) -> Registration:
    """Returns the registration that the plugin has just made because the kubelet did not ask it any more.

    Args:
        registration: the registration before this one.
        look: the kubelet and the plugin as they are now.
        lost: the reason why the plugin registered again.
        now_seconds: the present time, in seconds of a monotonic clock.
    """
    delay = FIRST_DELAY_SECONDS
    if lost is not Loss.UNREGISTERED and now_seconds - registration.at_seconds < 2 * LAST_DELAY_SECONDS:
        delay = min(2 * registration.delay_seconds, LAST_DELAY_SECONDS)
    return Registration(look.kubelet, now_seconds, delay, answered=look.answered, foreign=look.foreign)
