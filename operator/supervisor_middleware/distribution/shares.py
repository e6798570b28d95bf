"""Who gives way when there is not enough for everybody: whoever has the most. PURE.

Owners stand in groups (hosts in a network, viewers in a namespace), for whoever has one host or one account often
has many. Among groups the one that has the most gives way first, then among its members; so nobody who wants little
goes without because others want much, however many of them there are in one group.
"""

from collections import Counter, defaultdict
from collections.abc import Sequence
from ipaddress import IPv4Address, IPv6Address, ip_address, ip_network
from typing import Final, NamedTuple

_IPV4_NETWORK: Final = 24
_IPV6_NETWORK: Final = 64
"""Bits. One machine may use any address of such a network of IPv6."""


class Owner(NamedTuple):
    """Whose something is."""

    group: str
    member: str


def yielding(owners: Sequence[Owner]) -> list[int]:
    """The positions of `owners`, who have one thing each, in the order in which they give way.

    Of one member, and where all have the same, those that stand first go first.
    """
    of_members, of_groups = Counter[Owner](), Counter[str]()
    levels: dict[int, list[int]] = defaultdict(list)
    for position in reversed(range(len(owners))):
        levels[of_members[owners[position]]].append(position)
        of_members[owners[position]] += 1
    # The first thing of every member of a group stands before the second thing of any.
    ranks: dict[int, int] = {}
    for level in sorted(levels):
        for position in levels[level]:
            group = owners[position].group
            ranks[position] = of_groups[group]
            of_groups[group] += 1
    return sorted(ranks, key=lambda position: (-ranks[position], position))


def first_to_yield(owners: Sequence[Owner]) -> int:
    """The position of the first that gives way, soon found. Where two have the same, of the one that stands first."""
    of_groups = Counter(owner.group for owner in owners)
    most = max(of_groups.values())
    group = next(owner.group for owner in owners if of_groups[owner.group] == most)
    of_members = Counter(owner for owner in owners if owner.group == group)
    most = max(of_members.values())
    return next(position for position, owner in enumerate(owners) if of_members.get(owner) == most)


def owner_of(host: str) -> Owner:
    """Whose a host's things are, by its IP address: its own, in its network. What is no address is its own one."""
    try:
        address: IPv4Address | IPv6Address = ip_address(host)
    except ValueError:
        return Owner(group=host, member=host)
    bits = _IPV4_NETWORK if address.version == 4 else _IPV6_NETWORK
    return Owner(group=str(ip_network((address, bits), strict=False)), member=str(address))
